"""A function over measured rows, graph by graph, one process per core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from multiprocessing import get_context
from typing import Any, TypeVar

from rich.progress import Progress

from dippm.model.graph.model_graph import ModelGraph
from training.hybrid.rows.examples import GraphLookup, Row

T = TypeVar("T")
AT_ONCE = 64
"""Rows that a process is sent at once, more where one graph has more."""
_SHARED: dict[str, Any] = {}
"""What forked processes read: graphs are made by closures, which do not pickle."""


def over_graphs(
    work: Callable[[ModelGraph, Sequence[Row]], Sequence[T]],
    rows: Sequence[Row],
    graph: GraphLookup,
    *,
    what: str,
) -> list[T]:
    """Return what `work` returns for each row, in the order of the rows.

    Args:
        work: returns one result for each row of one graph.
        rows: measured.
        graph: key → graph.
        what: is done, for the progress bar.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i].graph)
    parts = list(_parts(order, rows))
    _SHARED.update(work=work, rows=rows, graph=graph)
    found: dict[int, T] = {}
    with Progress() as progress, get_context("fork").Pool() as pool:
        bar = progress.add_task(what, total=len(rows))
        for part, results in pool.imap(_of_part, parts):
            found.update(zip(part, results, strict=True))
            progress.advance(bar, len(part))
    _SHARED.clear()
    return [found[i] for i in range(len(rows))]


def _parts(order: Sequence[int], rows: Sequence[Row]) -> Iterator[list[int]]:
    """Yield rows of whole graphs, about AT_ONCE of them."""
    part: list[int] = []
    for _, of_graph in groupby(order, key=lambda i: rows[i].graph):
        part += of_graph
        if len(part) >= AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def _of_part(part: list[int]) -> tuple[list[int], list[Any]]:
    work, rows, graph = _SHARED["work"], _SHARED["rows"], _SHARED["graph"]
    found: list[Any] = []
    for key, places in groupby(part, key=lambda i: rows[i].graph):
        found += work(graph(key), [rows[i] for i in places])
    return part, found
