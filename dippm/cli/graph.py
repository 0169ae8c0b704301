"""`dippm graph`."""

from __future__ import annotations

from typing import Any

from dippm.cli import options
from dippm.cli.output import errors_reported, show
from dippm.cli.progress import progress_shown


def graph(
    model: options.Source,
    batch: options.Batch = 1,
    input: options.Input = None,
    framework: options.Framework = None,
    trust: options.Trust = False,
    tree: options.Tree = False,
    depth: options.Depth = 3,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show operators, MACs and bytes of a model, and operators without a cost rule."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.api import graph_at

        found = graph_at(model, framework, input=input, batch=batch, trust=trust)
    from dippm.estimate.module_tree import module_tree

    modules = module_tree(found, name=model) if tree else None
    from dippm.show.report.console import graph_table, tree_table
    from dippm.show.report.listing import Listing

    document = _document(found) | ({"tree": modules.to_dict()} if modules else {})
    tables = [graph_table(found, model), *([tree_table(modules, depth)] if modules else [])]
    rows = [{**node, "gmacs": node["macs"] / 1e9} for node in document["nodes"]]
    listing = Listing(model, rows, document, tables, "gmacs", "GMACs by operator")
    show("graph", listing, json=json, csv=csv, html=html)


def _document(graph: Any) -> dict[str, Any]:
    return {
        "version": graph.version,
        "batch": graph.batch,
        "batch_is_symbolic": graph.batch_is_symbolic,
        "macs": graph.macs,
        "param_bytes": graph.param_bytes,
        "unknown": dict(graph.unknown_ops),
        "histogram": dict(graph.histogram()),
        "inputs": {spec.name: [list(spec.shape), spec.dtype] for spec in graph.inputs},
        "outputs": {spec.name: [list(spec.shape), spec.dtype] for spec in graph.outputs},
        "nodes": [
            {
                "op": node.op,
                "path": node.path,
                "attributes": dict(node.attributes),
                "in_shapes": node.in_shapes,
                "out_shapes": node.out_shapes,
                "dtype": node.dtype,
                "macs": node.macs,
                "bytes_read": node.bytes_read,
                "bytes_written": node.bytes_written,
                "param_bytes": node.param_bytes,
            }
            for node in graph.nodes
        ],
        "edges": graph.edges,
    }
