"""What stays alive where the blocks of a model are checkpointed: run again in the backward pass.

A checkpointed block keeps what it is given; what autograd keeps of its inside exists for one block
at a time, while its gradients are made. What belongs to no block is kept as ever.
"""

from __future__ import annotations

import re
from collections import defaultdict

from dippm.features.kernels.backward.gradients import Gradients

_BLOCK = re.compile(r"^(?:\w+\.)*?\w+\.\d+(?:(?:\.\w*(?:blocks|layers|layer))?\.\d+)?")


def block_of(path: str) -> str:
    """Return the block that a module belongs to; empty if to none.

    A block is a numbered part: "blocks.3", "layer1.0", "stages.0.blocks.2".
    """
    found = _BLOCK.match(path)
    return found.group() if found else ""


def checkpointed_bytes(g: Gradients) -> float:
    """Return the most that is alive of what autograd keeps, with every block checkpointed.

    Args:
        g: a finished backward pass.
    """
    inside: defaultdict[str, float] = defaultdict(float)
    kept = 0.0
    boundaries: dict[object, float] = {}
    for memory, size in g.saved.items():
        block = block_of(g.paths[memory])
        if block:
            inside[block] += size
        else:
            kept += size
    for step in g.tape.steps:
        block = block_of(step.call.path)
        for position, state in step.given.items() if block else ():
            memory, size = g.tape.memory(position, state)
            made_in = block_of(g.tape.path(memory))
            if made_in != block and (made_in or memory not in g.saved):
                boundaries[memory] = size
    return kept + sum(boundaries.values()) + max(inside.values(), default=0.0)
