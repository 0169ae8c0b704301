"""A function over many items in forked processes, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from rich.progress import Progress

T = TypeVar("T")
R = TypeVar("R")
_forked: dict[str, Callable[[Any], Any]] = {}
"""The function of the pool that is being started: forks inherit it."""


def map_forked(
    work: Callable[[T], R],
    items: Sequence[T],
    *,
    what: str,
    processes: int | None = None,
    size: Callable[[T], int] | None = None,
) -> Iterator[R]:
    """Yield what a function returns for each item, in the order of the items.

    Forks inherit the function with all that it holds: arrays too large to send, closures that do
    not pickle. Items and results are sent.

    Args:
        work: called in a forked process.
        items: arguments of the calls.
        what: is done, for the progress bar.
        processes: number of processes; None for one per core, 1 for this one.
        size: progress that each item makes; 1 if it is None.
    """
    sizes = [size(item) if size else 1 for item in items]
    with Progress() as progress:
        bar = progress.add_task(what, total=sum(sizes))
        with _results(work, items, processes) as results:
            for found, done in zip(results, sizes, strict=True):
                progress.advance(bar, done)
                yield found


@contextmanager
def _results(
    work: Callable[[T], R], items: Sequence[T], processes: int | None
) -> Iterator[Iterator[R]]:
    if processes == 1:
        yield map(work, items)
        return
    _forked["work"] = work
    with get_context("fork").Pool(processes) as pool:
        del _forked["work"]
        yield pool.imap(_call, items)


def _call(item: Any) -> Any:
    return _forked["work"](item)
