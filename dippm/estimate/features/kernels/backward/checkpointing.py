"""The tensors that stay alive where blocks are checkpointed: run again in the backward pass.

A checkpointed block keeps what it is given; what autograd keeps of its inside exists for one block
at a time, while its gradients are made. What belongs to no block is kept as ever.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.backward.gradients import Gradients, Memory, Tape

_BLOCK = re.compile(r"^(?:\w+\.)*?\w+\.\d+(?:(?:\.\w*(?:blocks|layers|layer))?\.\d+)?")


def blocks_of(paths: Iterable[str]) -> Mapping[str, str]:
    """Return the block that each module belongs to, by path; empty if to none.

    A block is a numbered part: "blocks.3", "layer1.0", "stages.0.blocks.2". A stage, which holds
    blocks, is none.
    """
    found = {path: _BLOCK.match(path) for path in paths}
    named = {path: match.group() if match else "" for path, match in found.items()}
    stages = {name.rpartition(".")[0] for name in named.values()}
    stages |= {name.rpartition(".")[0] for name in stages}
    return {path: "" if name in stages else name for path, name in named.items()}


def checkpointed_bytes(g: Gradients) -> float:
    """Return the most that is alive of what autograd keeps, with every block checkpointed.

    Args:
        g: a finished backward pass.
    """
    blocks = blocks_of({step.call.path for step in g.tape.steps} | {""})
    inside: defaultdict[str, float] = defaultdict(float)
    kept: dict[Memory, float] = {}
    for memory, size in g.saved.items():
        made_in = blocks[g.paths[memory]]
        for block in {blocks[path] for path in g.savers[memory]}:
            if block and block == made_in:
                inside[block] += size
            else:
                kept[memory] = size
    for step in g.tape.steps:
        block = blocks[step.call.path]
        for position, state in step.given.items() if block else ():
            memory, size = g.tape.memory(position, state)
            if blocks[g.tape.path(memory)] != block:
                kept[memory] = size
    return sum(kept.values()) + max(inside.values(), default=0.0)


def recomputed(tape: Tape, first: int) -> list[Kernel]:
    """Return what runs again in the backward pass, with every block checkpointed.

    Args:
        tape: tape of the forward pass.
        first: position in the list of kernels where the first of them will stand.
    """
    blocks = blocks_of({step.call.path for step in tape.steps} | {""})
    place: dict[int, int] = {}
    found: list[Kernel] = []
    begin = 0
    for step in tape.steps:
        if step.kernel < 0:
            continue
        for position in range(begin, step.kernel + 1) if blocks[step.call.path] else ():
            kernel = tape.run.kernels[position]
            place[position] = first + len(found)
            sources = tuple(place.get(source, source) for source in kernel.sources)
            found.append(kernel._replace(part="recompute", sources=sources))
        begin = step.kernel + 1
    return found
