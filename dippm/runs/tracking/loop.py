"""`iterations`: record each pass of a loop as a span, and profile one of them on request.

Standard library only; torch is imported only for an iteration that torch.profiler records.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dippm.runs.tracking.run import current, span

PROFILE_VARIABLE = "DIPPM_PROFILE"
"""Environment variable with "PROFILER:ITERATION" in a run that is profiled."""
RANGE = "profile"
"""Name of the NVTX range that Nsight records, as in radT."""
UNTOLD = "no NVTX here (pip install nvtx): Nsight sees no range"

Item = TypeVar("Item")


def iterations(items: Iterable[Item], name: str = "iteration") -> Iterator[Item]:
    """Yield the items of a loop; the loop's body is a span of the current run for each.

    In a run with a profiler (`dippm run --profile torch --profile-at 20`) the body of that one
    iteration, counted from 0, is profiled.

    >>> for batch in iterations(range(3)):
    ...     pass

    Args:
        items: iterable of the loop; fetching the next item is not part of a span.
        name: name of the spans.
    """
    asked, _, at = os.environ.get(PROFILE_VARIABLE, "").partition(":")
    wanted = int(at) if asked and at.isdigit() else -1
    for number, item in enumerate(items):
        if number == wanted:
            with _torch_profile() if asked == "torch" else _range(), span(name):
                yield item
        else:
            with span(name):
                yield item


@contextmanager
def _torch_profile() -> Iterator[None]:
    """Profile a block with torch.profiler, and store its trace with the run."""
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
            torch.cuda.synchronize()  # kernels of the iteration may still be running
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
    """Return functions that open and close an NVTX range: torch's, else those of package nvtx."""
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
