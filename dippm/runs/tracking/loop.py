"""`iterations`: each pass of a loop is a span, and one of them is profiled where that was asked.

Standard library only; torch is loaded for the one iteration that torch.profiler looks at.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from dippm.runs.tracking.run import current, span

PROFILE_VARIABLE = "DIPPM_PROFILE"
"""Holds "PROFILER:ITERATION" in a run that is profiled."""
RANGE = "profile"
"""Of NVTX, as radT has it: what Nsight looks at."""
UNTOLD = "no NVTX here (pip install nvtx): Nsight sees no range"

Item = TypeVar("Item")


def iterations(items: Iterable[Item], name: str = "iteration") -> Iterator[Item]:
    """Yield the items of a loop; what its body does with each is a span of the current run.

    In a run that was asked for a profile (`dippm run --profile torch --profile-at 20`) the body of
    that one iteration is profiled, counted from 0.

    >>> for batch in iterations(range(3)):
    ...     pass

    Args:
        items: what the loop goes over; getting the next one is no part of a span.
        name: of the spans.
    """
    asked, _, at = os.environ.get(PROFILE_VARIABLE, "").partition(":")
    wanted = int(at) if asked and at.isdigit() else -1
    for number, item in enumerate(items):
        if number == wanted:
            with _profiled(asked), span(name):
                yield item
        else:
            with span(name):
                yield item


def _profiled(asked: str) -> AbstractContextManager[Any]:
    return _torch_profile() if asked == "torch" else _range()


@contextmanager
def _torch_profile() -> Iterator[None]:
    """Profile a block by torch.profiler, and keep its trace with the run."""
    run = current()
    profiler: Any = None
    try:
        from torch.profiler import profile

        profiler = profile(record_shapes=True, profile_memory=True)
        profiler.start()
    except Exception as error:  # the workload goes on
        profiler = None
        if run is not None:
            run.tag("trouble", f"torch.profiler: {type(error).__name__}: {error}")
    try:
        yield
    finally:
        if profiler is not None:
            _end(profiler, run)


def _end(profiler: Any, run: Any) -> None:
    try:
        torch = sys.modules["torch"]
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # kernels of the iteration may be running still
        profiler.stop()
        with tempfile.TemporaryDirectory(prefix="dippm-profile-") as scratch:
            trace = os.path.join(scratch, "torch.json")
            profiler.export_chrome_trace(trace)
            table = os.path.join(scratch, "torch.txt")
            with open(table, "w", encoding="utf-8") as file:
                file.write(profiler.key_averages().table(row_limit=100))
            if run is not None:
                run.artifact(trace, RANGE)
                run.artifact(table, RANGE)
    except Exception as error:
        if run is not None:
            run.tag("trouble", f"torch.profiler: {type(error).__name__}: {error}")


@contextmanager
def _range() -> Iterator[None]:
    push, pop = _nvtx()
    push(RANGE)
    try:
        yield
    finally:
        pop()


def _nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """Return what opens and closes a range of NVTX: torch's, else that of the package nvtx."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    with contextlib.suppress(ImportError):
        import nvtx

        return nvtx.push_range, nvtx.pop_range
    run = current()
    if run is not None:
        run.tag("trouble", UNTOLD)
    return (lambda name: None), (lambda: None)
