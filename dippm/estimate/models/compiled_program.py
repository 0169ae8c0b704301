"""The buffers of generated code that differ from those of the calls in a file.

Nobody reads the indices of most poolings, so they are never written. Autocast's cast of a tensor
becomes part of the code that makes the tensor: what only products and convolutions read is written
in half precision, and what others read too is written in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dippm.model.graph.liveness import Lifetime
from dippm.model.graph.operators import ELEMENTWISE_CATEGORIES, operator
from dippm.model.graph.program import Buffer, Program, ProgramStep

Halves = frozenset[int]
POINTWISE = ("norm", *ELEMENTWISE_CATEGORIES)
PRODUCTS = ("dense", "batch_matmul")


def without_indices(program: Program) -> Program:
    """Return the program with no indices that exist only while a step runs."""

    def kept(step: ProgramStep) -> tuple[int, ...]:
        return tuple(b for b in step.passing if program.buffers[b].dtype != "int64")

    return replace(program, steps=tuple(replace(s, passing=kept(s)) for s in program.steps))


def narrowed(program: Program, widths: Mapping[int, float]) -> tuple[Program, Halves]:
    """Return the program whose generated code casts what it writes, and the buffers so written.

    Args:
        program: of a forward under autocast.
        widths: bytes per element of every buffer as eager autocast has them.
    """
    readers: dict[int, list[ProgramStep]] = {}
    for step in program.steps:
        for buffer, _ in step.reads:
            readers.setdefault(buffer, []).append(step)
    buffers, half_of = list(program.buffers), dict[int, int]()
    steps = []
    for step in program.steps:
        made = []
        for buffer in step.makes:
            lower = [_lowers(reader) for reader in readers.get(buffer, ())]
            wide = buffers[buffer].dtype == "float32" and widths[buffer] > 2
            if wide and any(lower) and not _lowers(step):
                half_of[buffer] = len(buffers)
                buffers.append(Buffer(buffers[buffer].shape, "float32"))
                made.append(half_of[buffer])
            if buffer not in half_of or not all(lower) or buffer in program.outputs:
                made.append(buffer)
        reads = step.reads
        if _lowers(step):
            reads = tuple((half_of.get(buffer, buffer), shape) for buffer, shape in reads)
        steps.append(replace(step, makes=tuple(made), reads=reads))
    halves = frozenset(half_of.values())
    return replace(program, buffers=tuple(buffers), steps=tuple(steps)), halves


def overwritten(
    program: Program, lifetimes: Mapping[int, Lifetime], widths: Mapping[int, float]
) -> dict[int, Lifetime]:
    """Return lifetimes in which a result takes the place of an argument that nobody reads later.

    Generated code does so where it reads one element for each that it writes, of the same size. It
    does not where it reads a view, as of a product that has more than two axes: the library's is a
    matrix. So `torch.compile` (2.11) held ViT, DeiT and ConvNeXt on an H100 and an H200.
    """
    found = dict(lifetimes)
    viewed = {
        made
        for step in program.steps
        if step.op in PRODUCTS
        for made in step.makes
        if len(program.buffers[made].shape) > 2
    }
    ending: dict[int, list[int]] = {}
    for buffer, lifetime in lifetimes.items():
        if 0 <= lifetime.first < lifetime.last and buffer not in viewed:
            ending.setdefault(lifetime.last, []).append(buffer)
    for i, step in enumerate(program.steps):
        if operator(step.op).category not in POINTWISE:
            continue
        for made in step.makes:
            size = program.buffers[made].shape, widths[made]
            same = [b for b in ending.get(i, ()) if (program.buffers[b].shape, widths[b]) == size]
            if made in found and same:
                ending[i].remove(same[0])
                found[same[0]] = Lifetime(found[same[0]].first, i - 1)
    return found


def _lowers(step: ProgramStep) -> bool:
    """Tell whether autocast casts the arguments of a step to half precision."""
    return operator(step.op).autocast == "lower"
