"""Examples on disk: expanded once, in processes, and read back after that."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import numpy as np

from dippm.devices import find
from dippm.estimate.features.kernel_features import KERNEL_FEATURE_VERSION
from dippm.estimate.features.kernels import KERNEL_VERSION
from dippm.model.graph.model_graph import GRAPH_VERSION
from training.forked import map_forked
from training.hybrid.rows.examples import Examples, GraphLookup, Row, build_examples, join_examples

VERSION = f"{GRAPH_VERSION}-{KERNEL_VERSION}-{KERNEL_FEATURE_VERSION}"
"""Of graph, kernels and features: examples of another one are built anew."""
ROWS, ARRAYS = "rows.json", "arrays.npz"
CHUNK = 200
_NAMES = tuple(field.name for field in fields(Examples) if field.name != "rows")


def cached(folder: Path, rows: Callable[[], tuple[Sequence[Row], GraphLookup]]) -> Examples:
    """Return the examples of a folder; built, if it has none, of what `rows` returns.

    The name of the folder must say what the rows are of: see `digest_of`. What was expanded
    is kept part by part, so a run that was cut off goes on where it stopped.
    """
    if not (folder / ARRAYS).exists():
        _save(folder, expanded(*rows(), folder / "parts"))
        shutil.rmtree(folder / "parts", ignore_errors=True)
    return _read(folder)


def digest_of(rows: Sequence[Row], graphs: Path) -> str:
    """Return what tells examples of these rows from those of others, of other graphs or code."""
    found = hashlib.sha256(VERSION.encode())
    found.update("\n".join(map(repr, rows)).encode())
    for path in sorted(graphs.iterdir()):
        found.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]


def expanded(rows: Sequence[Row], graph: GraphLookup, parts: Path | None = None) -> Examples:
    """Return `build_examples` of rows in any order, one process per core if they are many.

    Args:
        rows: measured.
        graph: key → graph.
        parts: folder in which each part of many is kept, and found again; None keeps none.
    """
    ordered = sorted(rows, key=lambda row: (row.graph, row.precision, row.mode))
    if len(ordered) <= CHUNK:
        return build_examples(ordered, graph)
    if parts:
        parts.mkdir(parents=True, exist_ok=True)
    chunk = partial(_chunk, ordered, graph, parts)
    starts = range(0, len(ordered), CHUNK)
    return join_examples(list(map_forked(chunk, starts, what="kernels of measured rows")))


def _chunk(ordered: Sequence[Row], graph: GraphLookup, parts: Path | None, start: int) -> Examples:
    rows = ordered[start : start + CHUNK]
    if parts is None:
        return build_examples(rows, graph)
    names = hashlib.sha256("\n".join(row.row_id for row in rows).encode()).hexdigest()[:12]
    folder = parts / f"{start}-{names}"
    if not (folder / ARRAYS).exists():
        _save(folder, build_examples(rows, graph))
    return _read(folder)


def _save(folder: Path, examples: Examples) -> None:
    """Write examples; the arrays last, and whole or not at all: they say that a folder is done."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [
        {**asdict(row), "device": row.device.name, "mig": row.mig.name if row.mig else None}
        for row in examples.rows
    ]
    (folder / ROWS).write_text(json.dumps(documents))
    unfinished = folder / f"part-{ARRAYS}"
    np.savez(unfinished, **{name: getattr(examples, name) for name in _NAMES})
    unfinished.replace(folder / ARRAYS)


def _read(folder: Path) -> Examples:
    rows = []
    for document in json.loads((folder / ROWS).read_text()):
        device = find(document.pop("device"))
        name = document.pop("mig")
        profile = next((p for p in device.mig_profiles if p.name == name), None)
        kept = tuple(document.pop("kept_half"))
        rows.append(Row(**document, device=device, mig=profile, kept_half=kept))
    arrays = dict(np.load(folder / ARRAYS))
    return Examples(rows=rows, **arrays)
