"""Lifetimes of a program's buffers in eager and in compiled execution.

Eager PyTorch frees a tensor when nothing refers to it any more: after its last reader, and not
before the module call that received it returns, because the caller refers to the arguments of a
call. So the input of a block lives as long as the block runs, whatever the block does with it.
Lists, and local names that are never rebound, keep more tensors alive. That is known of modules
that DIPPM exports itself (`dippm.model.frontends.torch.lifetimes`), but not of most files.

A compiler frees a buffer after its last reader, and makes none for values that only pass between
element-wise operators.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from dippm.model.graph.operators import ELEMENTWISE_CATEGORIES, operator
from dippm.model.graph.program import Program, ProgramStep

MAX_DEPTH = 64
"""Maximum nesting of modules that is followed; a name in a file may have any number of dots."""

INLINED_READS = 3
"""Maximum number of buffers that an inlined result reads; with more, a compiler stores it."""
_FUSED_INTO = ("norm", "reduction", *ELEMENTWISE_CATEGORIES)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """First and last step at which a buffer is in memory, both included.

    Inputs are alive from step -1, before the first; inputs and results until `len(steps)`.
    """

    first: int
    last: int


def eager_lifetimes(program: Program) -> dict[int, Lifetime]:
    """Return the lifetime of every buffer in eager execution, step by step."""
    first, last = _by_readers(program)
    for start, end in _calls(program):
        for step in program.steps[start : end + 1]:
            for buffer, _ in step.reads:
                if first[buffer] < start and buffer not in program.held:
                    last[buffer] = max(last[buffer], end)
    for buffer in last.keys() & program.held.keys():
        last[buffer] = max(last[buffer], _last_step(program, program.held[buffer]))
    return {buffer: Lifetime(first[buffer], last[buffer]) for buffer in first}


def compiled_lifetimes(
    program: Program, stored: frozenset[int] = frozenset()
) -> dict[int, Lifetime]:
    """Return the lifetime of every buffer that compiled execution still stores.

    A buffer that is inlined is recomputed by its readers, so its own arguments live on.

    Args:
        program: steps and their buffers.
        stored: buffers that are stored in any case, with all others that their steps make.
    """
    readers: dict[int, list[ProgramStep]] = {}
    for step in program.steps:
        for buffer, _ in step.reads:
            readers.setdefault(buffer, []).append(step)
    sources: dict[int, tuple[int, ...]] = {}
    for step in program.steps:
        if stored.intersection(step.makes):
            continue
        read = tuple(dict.fromkeys(s for b, _ in step.reads for s in sources.get(b, (b,))))
        if len(read) > INLINED_READS or operator(step.op).category not in (
            "norm",
            *ELEMENTWISE_CATEGORIES,
        ):
            continue
        for buffer in step.makes:
            joins = readers.get(buffer, ())
            fused = all(operator(r.op).category in _FUSED_INTO for r in joins)
            if joins and fused and buffer not in program.outputs:
                sources[buffer] = read
    first, last = _by_readers(program, sources)
    return {b: Lifetime(first[b], last[b]) for b in first if b not in sources}


def _last_step(program: Program, origin: int) -> int:
    """Return the last step among the operators up to a position in the file."""
    return bisect_right(program.steps, origin, key=lambda step: step.origin) - 1


def _by_readers(
    program: Program, inlined: dict[int, tuple[int, ...]] | None = None
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first and the last step of every buffer, from its producer and readers."""
    count = len(program.steps)
    first = dict.fromkeys(range(program.inputs), -1)
    last = dict.fromkeys(range(program.inputs), count)
    for i, step in enumerate(program.steps):
        for buffer in (*step.makes, *step.passing):
            first[buffer], last[buffer] = i, i
        for buffer, _ in step.reads:
            for source in (inlined or {}).get(buffer, (buffer,)):
                first.setdefault(source, i)
                last[source] = max(last.get(source, i), i)
    for buffer in program.outputs:
        first.setdefault(buffer, count)
        last[buffer] = count
    return first, last


def _calls(program: Program) -> list[tuple[int, int]]:
    """Return the first and last step of every module call, a contiguous run of its steps."""
    calls: list[tuple[int, int]] = []
    running: dict[str, int] = {}
    for i, step in enumerate(program.steps):
        callers = _callers(step.path, program.called)
        for path in [p for p in running if p not in callers]:
            calls.append((running.pop(path), i - 1))
        for path in callers:
            running.setdefault(path, i)
    return calls + [(start, len(program.steps) - 1) for start in running.values()]


def _callers(path: str, called: frozenset[str]) -> list[str]:
    """Return the paths of all modules whose call encloses an operator of a module.

    If the file does not say which modules are called, every enclosing module counts.
    """
    parts = path.split(".", MAX_DEPTH) if path else []
    paths = ["", *(".".join(parts[: n + 1]) for n in range(len(parts)))]
    return [p for p in paths if not called or p in called]
