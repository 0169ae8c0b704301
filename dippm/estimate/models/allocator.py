"""The memory that PyTorch's caching allocator takes from the driver for a pass's tensors.

It asks for segments (2 MiB for tensors up to 1 MiB; 20 MiB for those below 10 MiB; else the size
rounded up to 2 MiB), cuts them, joins what lies free side by side, and never gives a segment back.
So what it reserves is more than what is ever alive. These are the rules of
`c10/cuda/CUDACachingAllocator.cpp` with its default settings.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIB = 1 << 20
BLOCK = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
MEDIUM = 10 * MIB
MEDIUM_SEGMENT = 20 * MIB
ROUNDING = 2 * MIB


class _Block:
    __slots__ = ("after", "before", "free", "large", "number", "size")

    def __init__(self, size: int, number: int, *, large: bool) -> None:
        self.size, self.number, self.large = size, number, large
        self.free = True
        self.before: _Block | None = None
        self.after: _Block | None = None


@dataclass(frozen=True, slots=True)
class Residents:
    """Segments of tensors that are never freed, as a model's weights.

    Attributes:
        reserved_bytes: size of all segments.
        free: what is left of them, each as its size and whether it is of a large segment.
    """

    reserved_bytes: int = 0
    free: tuple[tuple[int, bool], ...] = ()


class CachingAllocator:
    """Counts the segments that tensors need.

    Args:
        residents: segments that are there already.

    Attributes:
        reserved: bytes of all segments so far.
    """

    def __init__(self, residents: Residents | None = None) -> None:
        residents = residents or Residents()
        self.reserved = residents.reserved_bytes
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._blocks: dict[int, _Block] = {}
        for size, large in residents.free:
            insort(self._free[large], (size, self._new(size, large=large).number))

    @property
    def residents(self) -> Residents:
        """Return the segments if nothing that is in them will ever be freed."""
        free = ((size, bool(large)) for large in (0, 1) for size, _ in self._free[large])
        return Residents(self.reserved, tuple(free))

    def take(self, size: int) -> int:
        """Allocate a tensor; return its handle."""
        size = max(BLOCK, -(-size // BLOCK) * BLOCK)
        pool = self._free[size > SMALL]
        place = bisect_left(pool, (size, -1))
        block = self._blocks[pool.pop(place)[1]] if place < len(pool) else self._segment(size)
        block.free = False
        spare = block.size - size
        if spare > SMALL or (size <= SMALL and spare >= BLOCK):
            self._cut(block, size)
        return block.number

    def give(self, handle: int) -> None:
        """Free a tensor and join its block with free neighbours."""
        block = self._blocks[handle]
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._free[other.large].remove((other.size, other.number))
                self._join(block, other)
        block.free = True
        insort(self._free[block.large], (block.size, block.number))

    def _segment(self, size: int) -> _Block:
        if size <= SMALL:
            whole = SMALL_SEGMENT
        elif size < MEDIUM:
            whole = MEDIUM_SEGMENT
        else:
            whole = -(-size // ROUNDING) * ROUNDING
        self.reserved += whole
        return self._new(whole, large=size > SMALL)

    def _new(self, size: int, *, large: bool) -> _Block:
        block = _Block(size, len(self._blocks), large=large)
        self._blocks[block.number] = block
        return block

    def _cut(self, block: _Block, size: int) -> None:
        """Leave `size` bytes to a block and free the rest behind it."""
        rest = self._new(block.size - size, large=block.large)
        block.size = size
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        insort(self._free[rest.large], (rest.size, rest.number))

    def _join(self, block: _Block, other: _Block) -> None:
        block.size += other.size
        if other is block.before:
            block.before = other.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = other.after
            if block.after is not None:
                block.after.before = block


def residents_of(sizes: Iterable[float]) -> Residents:
    """Return the segments of tensors that are made one after the other and never freed.

    Args:
        sizes: bytes of each tensor, in the order in which they are made.
    """
    allocator = CachingAllocator()
    for size in sizes:
        allocator.take(int(size))
    return allocator.residents


def reserved_bytes(
    sizes: Iterable[int],
    first: Iterable[int],
    last: Iterable[int],
    *,
    residents: Residents | None = None,
    lasting: Sequence[tuple[int, int]] = (),
) -> int:
    """Return what is reserved for tensors that live from one step to another, both included.

    A second pass finds the segments of the first, so a warm model is what is counted.

    Args:
        sizes: bytes of each tensor.
        first: step before which each is made.
        last: step after which each is freed.
        residents: segments that are there before the first step.
        lasting: bytes of what the first pass makes and no pass frees, and the step that makes it,
            beside its own tensors. It takes a piece of what is free then, which later passes lack.
    """
    tensors = list(zip(sizes, first, last, strict=True))
    starts = sorted(range(len(tensors)), key=lambda i: tensors[i][1])
    ends = sorted(range(len(tensors)), key=lambda i: tensors[i][2])
    allocator = CachingAllocator(residents)
    coming = sorted(lasting, key=lambda made: made[1], reverse=True)
    for _ in range(2):
        handles: dict[int, int] = {}
        done = 0
        for i in starts:
            size, start, _end = tensors[i]
            while coming and coming[-1][1] < start:
                allocator.take(coming.pop()[0])
            while done < len(ends) and tensors[ends[done]][2] < start:
                allocator.give(handles[ends[done]])
                done += 1
            handles[i] = allocator.take(int(size))
        while coming:
            allocator.take(coming.pop()[0])
        for i in ends[done:]:
            allocator.give(handles[i])
    return allocator.reserved
