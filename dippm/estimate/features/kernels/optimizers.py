"""The update of parameters: passes over lists of tensors, several tensors in a launch.

    SGD with momentum      v ← μ v + g;  w ← w - η v
    Adam, AdamW            m ← β₁ m + (1 - β₁) g;  s ← β₂ s + (1 - β₂) g²;  w ← w - η m / (√s + ε)

Each pass is a `torch._foreach_*` call, which is what `torch.optim` chooses on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dippm.estimate.conditions import Optimizer
from dippm.estimate.features.kernel import Kernel

CHUNK = 65_536
"""Elements of a block of a launch (aten/src/ATen/native/cuda/MultiTensorApply.cuh, kChunkSize)."""
BLOCKS = 320
"""Largest number of blocks in a launch."""
TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors of each list that fit into the arguments of one launch, by the number of lists."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the parameters.

    Attributes:
        lists: number of lists of tensors that its launches take.
        reads: number of these lists that are read.
        flops: operations per element.
    """

    lists: int
    reads: int
    flops: int


@dataclass(frozen=True, slots=True)
class Update:
    """The work of an optimiser.

    Attributes:
        passes: passes over all parameters, each of which writes one list.
        states: number of tensors that it keeps in the shape of each parameter.
        fresh: number of further ones that exist while it runs.
    """

    passes: tuple[Pass, ...]
    states: int
    fresh: int = 0


_ADAM = (
    Pass(2, 2, 3),  # lerp of the first moment
    Pass(1, 1, 1),  # decay of the second
    Pass(3, 2, 3),  # square of the gradient
    Pass(2, 1, 4),  # root, to a new list
    Pass(1, 1, 4),  # divided by the correction of its bias
    Pass(1, 1, 1),  # plus ε
    Pass(3, 3, 6),  # the step
)
UPDATES: Mapping[Optimizer, Update] = {
    "sgd": Update((Pass(1, 1, 1), Pass(2, 2, 2), Pass(2, 2, 2)), 1),
    "adam": Update(_ADAM, 2, fresh=1),
    "adamw": Update((Pass(1, 1, 1), *_ADAM), 2, fresh=1),
}
"""Updates by name, with the defaults of `torch.optim`, and momentum for SGD."""


def update(optimizer: Optimizer, sizes: Sequence[int], width: int) -> list[Kernel]:
    """Return the kernels of an update.

    Args:
        optimizer: its name.
        sizes: elements of each parameter.
        width: bytes per element of parameters and states.
    """
    total = float(sum(sizes))
    kernels = []
    for step in UPDATES[optimizer].passes if total else ():
        kernel = Kernel.stream(0, "elementwise", total, width)
        kernels.append(
            kernel._replace(
                flops=step.flops * total,
                read_bytes=step.reads * total * width,
                launches=launches_over(sizes, step.lists),
                in_place=True,
                part="optimizer",
            )
        )
    return kernels


def launches_over(sizes: Sequence[int], lists: int) -> int:
    """Return how many kernels pass over lists of tensors.

    Args:
        sizes: elements of each tensor of a list.
        lists: number of lists.
    """
    limit = TENSORS[min(lists, max(TENSORS))]
    launches = tensors = blocks = 0
    for size in filter(None, sizes):
        tensors += 1
        chunks, room = -(-size // CHUNK), BLOCKS - blocks
        if chunks < room:
            blocks += chunks
        else:  # as many full launches as the tensor fills; the last may end with it
            full, blocks = divmod(chunks - room, BLOCKS)
            launches, tensors = launches + 1 + full, 1 if blocks else 0
        if tensors == limit:
            launches, blocks, tensors = launches + 1, 0, 0
    return launches + (1 if blocks else 0)
