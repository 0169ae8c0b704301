"""A function over measured rows, or questions about them, graph by graph, one process per core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol, TypeVar

from dippm.model.graph.model_graph import ModelGraph
from training.forked import map_forked
from training.hybrid.rows.examples import GraphLookup


class OfGraph(Protocol):
    """What is about the graph of a key."""

    @property
    def graph(self) -> str:
        """Return the key for the graph lookup."""


T = TypeVar("T")
Item = TypeVar("Item", bound=OfGraph)
AT_ONCE = 64
"""Rows that a process is sent at once, more where one graph has more."""


def over_graphs(
    work: Callable[[ModelGraph, Sequence[Item]], Sequence[T]],
    rows: Sequence[Item],
    graph: GraphLookup,
    *,
    what: str,
) -> list[T]:
    """Return what `work` returns for each row, in the order of the rows.

    Args:
        work: returns one result for each row of one graph.
        rows: measured, or questions about such rows.
        graph: key → graph.
        what: is done, for the progress bar.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i].graph)
    parts = list(_parts(order, rows))
    of_part = partial(_of_part, work, rows, graph)
    found: dict[int, T] = {}
    for part, results in zip(parts, map_forked(of_part, parts, what=what, size=len), strict=True):
        found.update(zip(part, results, strict=True))
    return [found[i] for i in range(len(rows))]


def _parts(order: Sequence[int], rows: Sequence[OfGraph]) -> Iterator[list[int]]:
    """Yield rows of whole graphs, about AT_ONCE of them."""
    part: list[int] = []
    for _, of_graph in groupby(order, key=lambda i: rows[i].graph):
        part += of_graph
        if len(part) >= AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def _of_part(
    work: Callable[[ModelGraph, Sequence[Item]], Sequence[T]],
    rows: Sequence[Item],
    graph: GraphLookup,
    part: list[int],
) -> list[T]:
    found: list[T] = []
    for key, places in groupby(part, key=lambda i: rows[i].graph):
        found += work(graph(key), [rows[i] for i in places])
    return found
