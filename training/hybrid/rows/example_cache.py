"""Examples on disk: expanded once, in processes, and read back after that."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from dippm.devices import find
from dippm.features.kernel_features import KERNEL_FEATURE_VERSION
from dippm.features.kernels import KERNEL_VERSION
from dippm.graph.model_graph import GRAPH_VERSION
from training.hybrid.rows.examples import Examples, GraphLookup, Row, build_examples, join_examples

VERSION = f"{GRAPH_VERSION}-{KERNEL_VERSION}-{KERNEL_FEATURE_VERSION}"
"""Of graph, kernels and features: examples of another one are built anew."""
ROWS, ARRAYS = "rows.json", "arrays.npz"
CHUNK = 200
_NAMES = tuple(field.name for field in fields(Examples) if field.name != "rows")
_SHARED: dict[str, Any] = {}
"""Rows and graphs for the forked workers: graphs are made by closures, which do not pickle."""


def cached(folder: Path, rows: Callable[[], tuple[Sequence[Row], GraphLookup]]) -> Examples:
    """Return the examples of a folder; built, if it has none, of what `rows` returns."""
    if not (folder / ARRAYS).exists():
        _save(folder, expanded(*rows()))
    return _read(folder)


def expanded(rows: Sequence[Row], graph: GraphLookup) -> Examples:
    """Return `build_examples` of rows in any order, one process per core if they are many."""
    ordered = sorted(rows, key=lambda row: (row.graph, row.precision, row.mode))
    if len(ordered) <= CHUNK:
        return build_examples(ordered, graph)
    _SHARED.update(rows=ordered, graph=graph)
    starts = range(0, len(ordered), CHUNK)
    with Progress() as progress, get_context("fork").Pool() as pool:
        task = progress.add_task("kernels of measured rows", total=len(starts))
        parts = []
        for part in pool.imap(_chunk, starts):
            parts.append(part)
            progress.advance(task)
    return join_examples(parts)


def _chunk(start: int) -> Examples:
    return build_examples(_SHARED["rows"][start : start + CHUNK], _SHARED["graph"])


def _save(folder: Path, examples: Examples) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    documents = [
        {**asdict(row), "device": row.device.name, "mig": row.mig.name if row.mig else None}
        for row in examples.rows
    ]
    (folder / ROWS).write_text(json.dumps(documents))
    np.savez(folder / ARRAYS, **{name: getattr(examples, name) for name in _NAMES})


def _read(folder: Path) -> Examples:
    rows = []
    for document in json.loads((folder / ROWS).read_text()):
        device = find(document.pop("device"))
        name = document.pop("mig")
        profile = next((p for p in device.mig_profiles if p.name == name), None)
        rows.append(Row(**document, device=device, mig=profile))
    arrays = dict(np.load(folder / ARRAYS))
    return Examples(rows=rows, **arrays)
