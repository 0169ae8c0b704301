"""What a compiler fuses: chains of element-wise kernels become one, with one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.features.kernel import Kernel
from dippm.features.kernel_classes import KERNEL_CLASSES


def fuse(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Merge kernels that read from each other and only stream memory.

    A group holds at most one reduction-like kernel, reads what comes from outside and writes what
    is read outside; what passes between its members stays in registers. Upsampling is generated
    code, so it does not walk serially.

    Args:
        kernels: in execution order, with their sources.
    """
    groups: list[list[int]] = []
    group_of: list[int] = []
    for position, kernel in enumerate(kernels):
        joined = _group_to_join(kernel, kernels, groups, group_of)
        if joined is None:
            groups.append([])
            joined = len(groups) - 1
        groups[joined].append(position)
        group_of.append(joined)
    order = sorted(range(len(groups)), key=lambda g: groups[g][-1])
    rank = {g: i for i, g in enumerate(order)}
    read_outside = _read_outside(kernels, group_of)
    merged = []
    for g in order:
        sources = {rank[group_of[s]] for at in groups[g] for s in kernels[at].sources}
        kernel = _merged(groups[g], kernels, read_outside)
        merged.append(kernel._replace(sources=tuple(sorted(sources - {rank[g]}))))
    return merged


def _group_to_join(
    kernel: Kernel, kernels: Sequence[Kernel], groups: list[list[int]], group_of: list[int]
) -> int | None:
    """Return the group of what the kernel reads last, if it can take the kernel."""
    if not _is_fusible(kernel) or not kernel.sources:
        return None
    latest = max((group_of[s] for s in kernel.sources), key=lambda g: groups[g][-1])
    members = [kernels[at] for at in groups[latest]]
    if not all(map(_is_fusible, members)):
        return None
    two_anchors = _is_anchor(kernel) and any(map(_is_anchor, members))
    return None if two_anchors else latest


def _is_fusible(kernel: Kernel) -> bool:
    return KERNEL_CLASSES[kernel.kind].fusible


def _is_anchor(kernel: Kernel) -> bool:
    return KERNEL_CLASSES[kernel.kind].anchor


def _read_outside(kernels: Sequence[Kernel], group_of: list[int]) -> list[bool]:
    """Tell of each kernel whether another group reads its result, or nobody does."""
    outside, inside = [False] * len(kernels), [False] * len(kernels)
    for position, kernel in enumerate(kernels):
        for source in kernel.sources:
            if group_of[source] == group_of[position]:
                inside[source] = True
            else:
                outside[source] = True
    return [out or not within for out, within in zip(outside, inside, strict=True)]


def _merged(group: list[int], kernels: Sequence[Kernel], read_outside: list[bool]) -> Kernel:
    members = [kernels[at] for at in group]
    if len(members) == 1:
        return members[0]._replace(serial=0.0)
    anchors = [k for k in members if _is_anchor(k)]
    body = anchors[0] if anchors else members[-1]
    own = set(group)
    read = 0.0
    for kernel in members:
        inner = sum(kernels[s].write_bytes for s in kernel.sources if s in own)
        read += max(0.0, kernel.read_bytes - inner)
    written = [k for at, k in zip(group, members, strict=True) if read_outside[at]]
    return body._replace(
        node=members[-1].node,
        flops=sum(k.flops for k in members),
        read_bytes=read,
        write_bytes=sum(k.write_bytes for k in written),
        weight_bytes=sum(k.weight_bytes for k in members),
        in_bytes=members[0].in_bytes,
        out_bytes=members[-1].out_bytes,
        strided=any(k.strided for k in members),
        run=min(k.run for k in members),
        serial=0.0,
        in_place=False,
    )
