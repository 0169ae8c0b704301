"""How long each buffer of a program lives, in eager and in compiled execution.

Eager PyTorch frees a tensor when nothing refers to it any more. That is after its last reader, and
not before the module call that it was given to returns: the caller holds the arguments of a call.
So the input of a block lives as long as the block runs, whatever the block does with it. Names
within a module that are never bound again, and lists, keep more alive: a module that is exported
here tells them (`dippm.model.frontends.torch.lifetimes`), most files do not.

A compiler frees after the last reader, and does not make what only passes between element-wise
operators.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from dippm.model.graph.operators import ELEMENTWISE_CATEGORIES, operator
from dippm.model.graph.program import Program, ProgramStep

MAX_DEPTH = 64
"""Modules within each other that are told apart; a name in a file could have any number of dots."""

INLINED_READS = 3
"""Reads from which a compiler makes a result instead of computing it where it is read."""
_FUSED_INTO = ("norm", "reduction", *ELEMENTWISE_CATEGORIES)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """First and last step at which a buffer is in memory, both included.

    Inputs live before the first step, -1; inputs and results live to the end, `len(steps)`.
    """

    first: int
    last: int


def eager(program: Program) -> dict[int, Lifetime]:
    """Return the lifetime of every buffer when steps run one by one."""
    first, last = _by_readers(program)
    for start, end in _calls(program):
        for step in program.steps[start : end + 1]:
            for buffer, _ in step.reads:
                if first[buffer] < start and buffer not in program.held:
                    last[buffer] = max(last[buffer], end)
    for buffer in last.keys() & program.held.keys():
        last[buffer] = max(last[buffer], _last_step(program, program.held[buffer]))
    return {buffer: Lifetime(first[buffer], last[buffer]) for buffer in first}


def compiled(program: Program, stored: frozenset[int] = frozenset()) -> dict[int, Lifetime]:
    """Return the lifetime of every buffer that a compiler still makes.

    What is not made any more is read where it would have been: its own arguments live on.

    Args:
        program: the steps.
        stored: buffers that are made in any case, with all that their steps make.
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
    """Return the last step of the operators up to a position in the file."""
    return bisect_right(program.steps, origin, key=lambda step: step.origin) - 1


def _by_readers(
    program: Program, inlined: dict[int, tuple[int, ...]] | None = None
) -> tuple[dict[int, int], dict[int, int]]:
    """Return (first, last) step of every buffer by who reads it."""
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
    """Return the first and last step of every module call; a call is one run of its steps."""
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
    """Return the modules that run when an operator of a module does.

    Where the file does not tell which modules are called, all that hold it are.
    """
    parts = path.split(".", MAX_DEPTH) if path else []
    paths = ["", *(".".join(parts[: n + 1]) for n in range(len(parts)))]
    return [p for p in paths if not called or p in called]
