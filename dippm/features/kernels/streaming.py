"""Operators that pass over memory once, and views, which move data only if they must copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from dippm.features.kernel import Kernel
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.features.kernels.casts import to_float32
from dippm.features.kernels.expansion import Expansion, reads_parameter
from dippm.features.kernels.sizes import elements, sizes
from dippm.graph.model_graph import OpNode
from dippm.graph.operators import operator

TO_CHANNELS_LAST = (0, 2, 3, 1)


def view(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield the copy of a view that cannot be one; else nothing, and the result is strided."""
    width = expansion.width[i] = expansion.promoted(i, node)
    free = expansion.channels_last and node.attributes.get("permutation") == TO_CHANNELS_LAST
    if node.attributes.get("copies") and not free:
        count = float(elements(node))
        row = node.out_shapes[0][-1] if node.out_shapes[0] else 1
        copy = Kernel.stream(i, "copy", count, width)
        yield replace(copy, strided=True, m=count / max(row, 1), n=float(row))
    else:
        expansion.strided[i] = node.op == "transpose" or expansion.reads_strided(i)


def pass_over_memory(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield the kernel of an operator that is no matrix product, and the cast that it needs."""
    width = expansion.width[i] = expansion.promoted(i, node)
    kind = class_of_operator(node)
    row = KERNEL_CLASSES[kind]
    written = float(sum(prod(s) for s in node.out_shapes))
    read = float(sum(prod(s) for s in node.in_shapes))
    source_width = max(
        (expansion.width[p] for p in expansion.producers[i]), default=expansion.default_width
    )
    if expansion.widens(node) and source_width == 2:
        yield to_float32(i, read)
        source_width = 4
    if row.reads_what_it_writes or node.op == "dynamic_slice":
        read = written
    length = _row_length(node, kind)
    yield Kernel(
        node=i,
        kind=kind,
        unit="fp32",
        flops=float(max(node.flops, written)),
        read_bytes=float(source_width * read),
        write_bytes=float(width * written),
        weight_bytes=float(4 * length if row.parameter_row else 0),
        m=max(read, written) / max(length, 1.0),
        n=length,
        window=prod(sizes(node, "kernel")),
        stride=max(sizes(node, "strides")),
        in_bytes=source_width,
        out_bytes=width,
        strided=expansion.reads_strided(i),
        serial=float(_serial_steps(expansion, i, node)),
    )


def class_of_operator(node: OpNode) -> str:
    """Return the kernel class of an operator that is no matrix product."""
    row = operator(node.op)
    broadcasts = len(set(node.in_shapes)) > 1 or reads_parameter(node)
    return "broadcast" if row.kernel == "elementwise" and broadcasts else row.kernel


def _row_length(node: OpNode, kind: str) -> float:
    """Return the length over which a kernel reduces or streams contiguously."""
    shape = node.in_shapes[0] if node.in_shapes else node.out_shapes[0]
    axis = KERNEL_CLASSES[kind].axis
    if axis == "reduced" and node.out_shapes:
        return prod(shape) / max(1, prod(node.out_shapes[0]))
    if axis == "channels":
        return float(shape[1]) if len(shape) > 1 else 1.0
    return float(shape[-1]) if shape else 1.0


def _serial_steps(expansion: Expansion, i: int, node: OpNode) -> int:
    """Return images × channels for bilinear upsampling of contiguous images, else 0.

    A thread of its kernel walks all images and channels.
    """
    if node.op != "resize" or node.attributes.get("mode") != "linear":
        return 0
    out = node.out_shapes[0]
    return prod(out[:2]) if len(out) == 4 and not expansion.reads_strided(i) else 0
