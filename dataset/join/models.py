"""Models by name → keys and totals of their graphs, and the join with rows."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from dataset.join import raw_graphs
from dataset.join.grouping import architecture_id, family_of
from dippm.errors import DippmError
from dippm.model.graph import build as build_graph
from dippm.model.graph.model_graph import GRAPH_VERSION, ModelGraph
from dippm.model.graph.operators import operator

TOTALS = (
    "macs_per_sample",
    "flops_per_sample",
    "elements_per_sample",
    "param_bytes",
    "n_operators",
    "n_compute",
    "n_conv",
    "n_dense",
    "n_relu",
)


def describe(spec: str, graphs: Path) -> dict[str, Any]:
    """Return the keys and totals of a model, or the reason for a missing graph.

    Args:
        spec: name such as "timm:resnet50@224".
        graphs: folder written by `dataset.raw_graphs`.
    """
    record: dict[str, Any] = {"model": spec, "graph_version": GRAPH_VERSION}
    try:
        raw = raw_graphs.read(spec, graphs)
        graph = build_graph(raw)
    except (DippmError, FileNotFoundError) as error:
        return {**record, "error": str(error).splitlines()[0]}
    return {
        **record,
        "arch_id": architecture_id(graph),
        "family_id": family_of(spec),
        **totals(graph),
        "unknown_ops": dict(graph.unknown_ops),
        "graph_sha256": hashlib.sha256(raw.to_json().encode()).hexdigest(),
    }


def totals(graph: ModelGraph) -> dict[str, float]:
    """Return totals of one sample, the inputs of predictors without a graph."""
    written = sum(node.bytes_written for node in graph.nodes)
    compute = sum(operator(node.op).category == "compute" for node in graph.nodes)
    count = graph.histogram()
    return {
        "macs_per_sample": graph.macs / graph.batch,
        "flops_per_sample": graph.flops / graph.batch,
        "elements_per_sample": written / 4 / graph.batch,
        "param_bytes": graph.param_bytes,
        "n_operators": len(graph.nodes),
        "n_compute": compute,
        "n_conv": sum(n for op, n in count.items() if op.startswith("conv")),
        "n_dense": count.get("dense", 0),
        "n_relu": count.get("relu", 0),
    }


def describe_all(
    specs: Iterable[str], graphs: Path, cache: Path, workers: int = 2
) -> Iterator[dict[str, Any]]:
    """Yield descriptions of models, cached in a file of JSON lines.

    Results of another graph version, and models without a raw graph, are computed again.
    """
    known = {}
    if cache.is_file():
        lines = (json.loads(line) for line in cache.read_text(encoding="utf-8").splitlines())
        known = {r["model"]: r for r in lines if _is_current(r)}
    todo = [spec for spec in specs if spec not in known]
    yield from (known[spec] for spec in specs if spec in known)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in known.values())
        file.flush()
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            for record in pool.imap_unordered(partial(describe, graphs=graphs), todo, chunksize=4):
                file.write(json.dumps(record) + "\n")
                file.flush()
                yield record


def join(rows: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """Return the measured rows whose model has a graph, with its keys and totals."""
    usable = models[models["arch_id"].notna()]
    columns = ["model", "arch_id", "family_id", *TOTALS]
    return rows.merge(usable[columns], on="model", how="inner", validate="many_to_one")


def _is_current(record: dict[str, Any]) -> bool:
    current = record.get("graph_version") == GRAPH_VERSION and "error" not in record
    return current and set(TOTALS) <= set(record)
