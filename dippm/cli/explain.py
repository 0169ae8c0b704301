"""`dippm explain`, `diff`, `what-if` and `graph`: where the cost of a model comes from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, progress_shown, ready_to_plot, show


@options.conditions()
def explain(
    model: options.Source,
    *,
    operators: options.Operators = 0,
    depth: options.Depth = 3,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Attribute time, energy and memory to the parts of a model.

    With --html the page has a flame chart and a roofline plot.
    """
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        from dippm.decide.explanation import explain as answer

        found = answer(model, **asked)
    show("explain", found, json=json, csv=csv, html=html, depth=depth, operators=operators)


@options.conditions("channels_last", pairs=True)  # --layout says it for either side
def diff(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [MODEL]", help="One model under two conditions, or two models."
        ),
    ],
    *,
    layout: Annotated[
        str,
        typer.Option(
            "--layout", help="channels-first or channels-last, or two layouts separated by a comma."
        ),
    ] = "channels-first",
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth",
            min=1,
            help="Number of module levels by which changes are summed. Default: all.",
        ),
    ] = None,
    rows: Annotated[
        int,
        typer.Option("--rows", min=1, help="Number of listed changes; the others are summed up."),
    ] = 15,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Attribute the time difference between two predictions: two models, devices, precisions, ...

    A condition with two values, such as `--precision fp32,fp16` or `--mig full,3g.20gb`, has one
    for each side.
    """
    if len(models) > 2:
        raise typer.BadParameter(f"{len(models)} models: give one or two")
    layouts = [_layout(text) for text in options.split_list(layout)]
    sides = {name: options.sides(name, value) for name, value in asked.items()}
    sides["channels_last"] = layouts[0] if len(layouts) == 1 else layouts
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        from dippm.decide.explanation import diff as answer

        after = models[1] if len(models) == 2 else None
        found = answer(models[0], after, **sides)
    document = found.to_dict(depth)
    how: dict[str, Any] = {"depth": depth, "rows": rows}
    show("diff", found, json=json, csv=csv, html=html, document=document, **how)


def _layout(text: str) -> bool:
    if text not in ("channels-first", "channels-last"):
        raise typer.BadParameter(f"layout {text!r}: channels-first or channels-last")
    return text == "channels-last"


@options.conditions()
def what_if(
    model: options.Source,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Predict the effect of single changes on a model: bandwidth, memory layout, batch size, ..."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.explanation import what_if as answer

        found = answer(model, **asked)
    show("what-if", found, json=json, csv=csv, html=html)


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
    from dippm.show.report.answers import Listing
    from dippm.show.report.console import graph_table, tree_table

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
