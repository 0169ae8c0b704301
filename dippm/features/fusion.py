"""What a compiler fuses: chains of element-wise kernels become one, with one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from dippm.features.data_flow import merged_sources
from dippm.features.kernel import Kernel
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.graph.model_graph import ModelGraph


def fuse(graph: ModelGraph, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Merge kernels that follow each other in data flow and only stream memory.

    A group holds at most one reduction-like kernel, reads what comes from outside and writes what
    leaves it; what passed between its members stays in registers. Upsampling is generated code, so
    it does not walk serially.
    """
    producers: dict[int, set[int]] = {}
    for producer, consumer in graph.edges:
        producers.setdefault(consumer, set()).add(producer)
    groups: list[list[Kernel]] = []
    positions: dict[int, list[int]] = {}
    group_of_node: dict[int, list[Kernel]] = {}
    for position, kernel in enumerate(kernels):
        group = _group_to_join(kernel, producers, group_of_node)
        if group is None:
            group = []
            groups.append(group)
        group.append(kernel)
        positions.setdefault(id(group), []).append(position)
        group_of_node[kernel.node] = group
    sources = merged_sources([positions[id(group)] for group in groups], kernels)
    return [
        replace(_merged(group), sources=before)
        for group, before in zip(groups, sources, strict=True)
    ]


def _group_to_join(
    kernel: Kernel, producers: dict[int, set[int]], group_of_node: dict[int, list[Kernel]]
) -> list[Kernel] | None:
    if not _is_fusible(kernel):
        return None
    for node in (kernel.node, *sorted(producers.get(kernel.node, ()), reverse=True)):
        group = group_of_node.get(node)
        if group and all(map(_is_fusible, group)):
            two_anchors = _is_anchor(kernel) and any(map(_is_anchor, group))
            if not two_anchors:
                return group
    return None


def _is_fusible(kernel: Kernel) -> bool:
    return KERNEL_CLASSES[kernel.kind].fusible


def _is_anchor(kernel: Kernel) -> bool:
    return KERNEL_CLASSES[kernel.kind].anchor


def _merged(group: list[Kernel]) -> Kernel:
    if len(group) == 1:
        return replace(group[0], serial=0.0)
    anchors = [k for k in group if _is_anchor(k)]
    first, last = group[0], group[-1]
    side_inputs = sum(max(0.0, k.read_bytes - p.write_bytes) for p, k in pairwise(group))
    body = anchors[0] if anchors else last
    return replace(
        body,
        node=last.node,
        flops=sum(k.flops for k in group),
        read_bytes=first.read_bytes + side_inputs,
        write_bytes=last.write_bytes,
        weight_bytes=sum(k.weight_bytes for k in group),
        in_bytes=first.in_bytes,
        out_bytes=last.out_bytes,
        strided=any(k.strided for k in group),
    )
