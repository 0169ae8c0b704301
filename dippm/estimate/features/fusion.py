"""Fusion by a compiler: chains of element-wise kernels become one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES


def fuse(kernels: Sequence[Kernel], graph_breaks: Sequence[range] = ()) -> list[Kernel]:
    """Merge kernels that read from each other and only stream memory.

    A group holds at most one reduction-like kernel, reads what comes from outside and writes what
    is read outside; what passes between its members stays in registers. A kernel that reads two
    groups joins both, such as the sum of two normalised branches. Nothing is merged across a break
    of the graph.

    Args:
        kernels: kernels in execution order, with their sources.
        graph_breaks: positions of kernels that are not compiled, see `Run`.
    """
    part_of = _compiled_parts(kernels, graph_breaks)
    groups: list[list[int]] = []
    group_of: list[int] = []
    for position in range(len(kernels)):
        joined = _group_to_join(position, kernels, part_of, groups, group_of)
        if joined is None:
            groups.append([])
            joined = len(groups) - 1
        else:
            for other in _branches(position, joined, kernels, part_of, groups, group_of):
                groups[joined] = sorted(groups[joined] + groups[other])
                for member in groups[other]:
                    group_of[member] = joined
                groups[other] = []
        groups[joined].append(position)
        group_of.append(joined)
    return joined_groups(kernels, groups, group_of)


def joined_groups(
    kernels: Sequence[Kernel], groups: Sequence[list[int]], group_of: Sequence[int]
) -> list[Kernel]:
    """Return one kernel for each group that is not empty, in the order in which they end.

    Args:
        kernels: kernels in execution order, with their sources.
        groups: positions of the kernels of each group, in order.
        group_of: group of each kernel.
    """
    order = sorted((g for g in range(len(groups)) if groups[g]), key=lambda g: groups[g][-1])
    rank = {g: i for i, g in enumerate(order)}
    read_outside = _read_outside(kernels, group_of)
    merged = []
    for g in order:
        sources = {rank[group_of[s]] for at in groups[g] for s in kernels[at].sources}
        kernel = _merged(groups[g], kernels, read_outside)
        merged.append(kernel._replace(sources=tuple(sorted(sources - {rank[g]}))))
    return merged


def _compiled_parts(kernels: Sequence[Kernel], graph_breaks: Sequence[range]) -> list[int | None]:
    """Return the compiled graph that each kernel is in; None for what no compiler merges."""
    found: list[int | None] = []
    left_alone = {at for each in graph_breaks for at in each}
    starts = {each.start for each in graph_breaks}
    part = 0
    for position, kernel in enumerate(kernels):
        part += position in starts
        fusible = KERNEL_CLASSES[kernel.kind].fusible and position not in left_alone
        found.append(part if fusible else None)
    return found


def _group_to_join(
    position: int,
    kernels: Sequence[Kernel],
    part_of: Sequence[int | None],
    groups: list[list[int]],
    group_of: list[int],
) -> int | None:
    """Return the latest group that the kernel reads and that can take it."""
    kernel, part = kernels[position], part_of[position]
    if part is None:
        return None
    read = {group_of[source] for source in kernel.sources}
    for group in sorted(read, key=lambda g: -groups[g][-1]):
        members = [kernels[at] for at in groups[group]]
        two_anchors = _is_anchor(kernel) and any(map(_is_anchor, members))
        if any(part_of[at] != part for at in groups[group]) or two_anchors:
            continue
        if not _waits_for([position], set(groups[group]), kernels):
            return group
    return None


def _branches(
    position: int,
    joined: int,
    kernels: Sequence[Kernel],
    part_of: Sequence[int | None],
    groups: list[list[int]],
    group_of: list[int],
) -> list[int]:
    """Return the other groups that a kernel reads and that can become part of the one it joins.

    Nobody else reads such a group yet, it does not wait for the joined one, and what is read of it
    has as many elements as the kernel writes: one loop serves all.
    """
    kernel, taken = kernels[position], set(groups[joined])
    anchored = _is_anchor(kernel) or any(_is_anchor(kernels[at]) for at in taken)
    found: list[int] = []
    for source in kernel.sources:
        group = group_of[source]
        members = groups[group]
        if group == joined or group in found or not _same_loop(kernels[source], kernel):
            continue
        if any(part_of[at] != part_of[position] for at in members):
            continue
        anchors = any(_is_anchor(kernels[at]) for at in members)
        read = _is_read_by_others(set(members), kernels[:position])
        if (anchored and anchors) or read or _waits_for(members, taken, kernels):
            continue
        found.append(group)
        taken |= set(members)
        anchored = anchored or anchors
    return found


def _same_loop(source: Kernel, kernel: Kernel) -> bool:
    return source.write_bytes * kernel.out_bytes == kernel.write_bytes * source.out_bytes


def _is_read_by_others(members: set[int], before: Sequence[Kernel]) -> bool:
    first = min(members)
    return any(
        not members.isdisjoint(kernel.sources)
        for at, kernel in enumerate(before[first:], first)
        if at not in members
    )


def _waits_for(members: Sequence[int], others: set[int], kernels: Sequence[Kernel]) -> bool:
    """Tell whether members read, through kernels of neither group, what others write."""
    first, seen = min(others), {*members, *others}
    stack = list(members)
    while stack:
        at = stack.pop()
        for source in kernels[at].sources:
            if source in others and at not in members:
                return True
            if source >= first and source not in seen:
                seen.add(source)
                stack.append(source)
    return False


def _is_anchor(kernel: Kernel) -> bool:
    return KERNEL_CLASSES[kernel.kind].anchor


def _read_outside(kernels: Sequence[Kernel], group_of: Sequence[int]) -> list[bool]:
    """Tell for each kernel whether its result is read by another group, or not at all."""
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
        return members[0]
    products = [k for k in members if KERNEL_CLASSES[k.kind].matrix]
    leading = products or [k for k in members if _is_anchor(k)]
    body = leading[0] if leading else members[-1]
    own = set(group)
    read = 0.0
    for kernel in members:
        inner = sum(kernels[s].write_bytes for s in kernel.sources if s in own)
        read += max(0.0, kernel.read_bytes - inner)
    written = [k for at, k in zip(group, members, strict=True) if read_outside[at]]
    return body._replace(
        node=body.node if products else members[-1].node,
        flops=sum(k.flops for k in members),
        read_bytes=read,
        write_bytes=sum(k.write_bytes for k in written),
        weight_bytes=sum(k.weight_bytes for k in members),
        in_bytes=members[0].in_bytes,
        out_bytes=members[-1].out_bytes,
        strided=any(k.strided for k in members),
        run=min(k.run for k in members),
        in_place=False,
    )
