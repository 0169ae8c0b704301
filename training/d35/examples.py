"""Graphs and labels of `dataset.d35` as training examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dataset.d35.graphs import parts
from dataset.d35.labels import TARGETS, fits
from dippm.errors import DippmError
from dippm.estimate.features import NODE_FEATURES, GraphTensors
from dippm.estimate.features.encode import STATIC_COLUMNS
from dippm.model.graph import GRAPH_VERSION
from training.pmgns.examples import Examples


def load_examples(folder: Path, labels: Path, *, most: int | None = None) -> Examples:
    """Return the graphs that have labels, without those that by their label would not have run.

    Args:
        folder: folder that `dataset.d35.graphs` wrote.
        labels: folder of labels below it, see `dataset.d35.labels.labels_folder`.
        most: examples of each family, the first ones; None takes all.

    Raises:
        DippmError: if there are no labels, or labels are of other graphs.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    graphs: list[GraphTensors] = []
    tables, targets, operators = [], [], set()
    taken: dict[str, int] = {}
    for part in parts(folder):
        path = labels / part.path.name
        room = None if most is None else most - taken.get(part.family, 0)
        if not path.is_file() or room == 0:
            continue
        table, of_part = pq.read_table(part.path)[:room], pq.read_table(path)[:room]
        if table["graph_id"].to_pylist() != of_part["graph_id"].to_pylist():
            raise DippmError(f"{path} labels other graphs", "Delete it and label again.")
        runs = pa.array(fits(of_part["memory_mb"].to_numpy()))
        table, of_part = table.filter(runs), of_part.filter(runs)
        taken[part.family] = taken.get(part.family, 0) + len(table)
        graphs += graph_tensors(table)
        operators |= set(table["operators"].combine_chunks().flatten().unique().to_pylist())
        tables.append(table.select(["graph_id", "family", "model", "arch_id"]))
        targets.append(torch.stack([_column(of_part, name) for name in TARGETS], dim=1))
    if not tables:
        raise DippmError(
            f"no labels in {labels}", "Make them with `python -m dataset.d35.labels FOLDER`."
        )
    names = pa.concat_tables(tables)
    return Examples(
        graphs=graphs,
        targets=torch.cat(targets),
        rows=tuple(names["graph_id"].to_pylist()),
        models=tuple(names["model"].to_pylist()),
        architectures=tuple(names["arch_id"].to_pylist()),
        families=tuple(names["family"].to_pylist()),
        operators=tuple(sorted(operators)),
        graph_version=GRAPH_VERSION,
    )


def graph_tensors(table: Any) -> list[GraphTensors]:
    """Return the graphs of an Arrow table with the columns of `dataset.d35.graphs.schema`."""
    x = _flat(table, "x").float().reshape(-1, NODE_FEATURES)
    edges = torch.stack([_flat(table, "edge_from"), _flat(table, "edge_to")]).long()
    lengths = table["edge_from"].combine_chunks().value_lengths().to_pylist()
    static = torch.stack([_column(table, name) for name in STATIC_COLUMNS], dim=1)
    parts_of = zip(
        x.split(table["nodes"].to_pylist()),
        edges.split(lengths, dim=1),
        static.split(1),
        strict=True,
    )
    return [GraphTensors(x, e, s, torch.zeros(len(x), dtype=torch.int64)) for x, e, s in parts_of]


def about_labels(labels: Path) -> dict[str, Any]:
    """Return what a folder of labels says of itself: checkpoint, conditions, provenance.

    Raises:
        DippmError: if there are none.
    """
    import pyarrow.parquet as pq

    path = next(iter(sorted(labels.glob("*.parquet"))), None)
    if path is None:
        raise DippmError(
            f"no labels in {labels}", "Make them with `python -m dataset.d35.labels FOLDER`."
        )
    about: dict[str, Any] = json.loads(pq.read_schema(path).metadata[b"d35"])
    return about


def _flat(table: Any, name: str) -> torch.Tensor:
    return torch.from_numpy(table[name].combine_chunks().flatten().to_numpy().copy())


def _column(table: Any, name: str) -> torch.Tensor:
    """Return numbers as float32, null as NaN."""
    import numpy as np

    values = table[name].to_numpy().astype(np.float32)
    return torch.from_numpy(values.copy())
