"""Sets of our own → examples, expanded once and kept beside those of other people's tables."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from dataset.join.graph_store import GraphStore
from dippm.measure.collected.kernels import read_kernels
from training.hybrid.rows.collected_kernels import Place, certain, rows_of_kernels
from training.hybrid.rows.collected_rows import (
    GPU_BOUND,
    LONG_KERNEL_MS,
    MOST_OF_STEP,
    TIMERS,
    CollectedSet,
    has_own_kernels,
    rows_of,
    rows_that_teach,
)
from training.hybrid.rows.example_cache import VERSION, cached
from training.hybrid.rows.examples import Examples, GraphLookup, Row


def load_collected(
    found: CollectedSet, graphs: Path, work: Path, *, place: Place = certain
) -> Examples:
    """Return the examples of a set: its points in their regimes, and operators amid its models.

    Args:
        found: the set.
        graphs: folder of raw graphs.
        work: where examples are kept, by the rows that they are of and by `VERSION`.
        place: joins its kernel tables with graphs.
    """
    tables = read_kernels(found.folder)
    limits = f"{GPU_BOUND} {LONG_KERNEL_MS} {MOST_OF_STEP}"
    digest = _digest([found.digest, *sorted(tables), *TIMERS, limits])
    folder = work / f"{found.source.replace('/', '-')}-{digest}-{VERSION}"

    def rows() -> tuple[list[Row], GraphLookup]:
        store = GraphStore(graphs)
        points = rows_of(found, store)
        profiled = {r["row_id"] for r in found.records if has_own_kernels(r)}
        known = {point: table for point, table in tables.items() if point in profiled}
        nodes = rows_of_kernels(points, known, store.__getitem__, place=place)
        return [*rows_that_teach(found, points), *nodes], store.__getitem__

    return cached(folder, rows)


def digest_of(sets: Sequence[CollectedSet]) -> str:
    """Return what tells fits with these sets from fits with others; empty without any."""
    return _digest([found.digest for found in sets]) if sets else ""


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
