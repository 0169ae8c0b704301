"""Gradients on their way while others are still computed.

Each bucket of gradients is summed over GPUs as soon as its last one is there, one bucket after the
other, beside the backward pass (S. Li et al., "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training", VLDB 13(12), 2020, section 3.2.3). What is not done when the pass ends is
waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIB = 2.0**20
FIRST_BUCKET_MB, BUCKET_MB = 1.0, 25.0
"""`torch.nn.parallel.DistributedDataParallel`'s."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What exchanging gradients takes.

    Attributes:
        all_ms: of all buckets, one after the other.
        exposed_ms: of it after the end of the backward pass.
        buckets: how many.
    """

    all_ms: float
    exposed_ms: float
    buckets: int


def overlap(
    gradients: Sequence[tuple[float, float]], all_reduce_ms: Callable[[float], float]
) -> Overlap:
    """Follow the buckets of a backward pass.

    Args:
        gradients: (time of the backward pass in ms, bytes of gradients) of each operator in the
            order of the backward pass.
        all_reduce_ms: time of summing so many bytes over all GPUs.
    """
    clock, link_free, held, limit = 0.0, 0.0, 0.0, FIRST_BUCKET_MB * MIB
    all_ms, count = 0.0, 0
    for position, (time_ms, size) in enumerate(gradients, 1):
        clock += time_ms
        held += size
        while held >= limit or (position == len(gradients) and held > 0):
            sent = min(held, limit)
            took = all_reduce_ms(sent)
            link_free = max(link_free, clock) + took
            all_ms += took
            held -= sent
            count += 1
            limit = BUCKET_MB * MIB
    return Overlap(all_ms, max(0.0, link_free - clock), count)
