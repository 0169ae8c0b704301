"""Convolutions, by what they become: pointwise ones are products, depthwise ones stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from dippm.features.kernel import Kernel
from dippm.features.kernels.expansion import Expansion
from dippm.features.kernels.products import product
from dippm.features.kernels.sizes import number, sizes
from dippm.graph.model_graph import OpNode


def convolution(expansion: Expansion, i: int, node: OpNode) -> Iterator[Kernel]:
    """Yield the kernel of a convolution: pixels × output channels, summed over the window."""
    window, strides = sizes(node, "kernel"), sizes(node, "strides")
    groups = int(number(node, "groups"))
    channels_in = int(number(node, "in_channels"))
    channels_out = int(number(node, "out_channels"))
    out = node.out_shapes[0]
    pixels = out[0] * prod(out[2:])
    shape = (float(pixels), channels_out / groups, channels_in / groups * prod(window))
    kind = convolution_class(node.op, window, strides, groups, channels_in)
    kernel = product(expansion, i, node, kind, shape, float(groups))
    yield replace(kernel, window=prod(window), stride=max(strides))


def convolution_class(
    op: str, kernel: Sequence[int], strides: Sequence[int], groups: int, channels_in: int
) -> str:
    """Return the kernel class of a convolution."""
    if op != "conv2d":
        return "conv_other"
    if groups > 1:
        return "conv_depthwise" if groups == channels_in else "conv_grouped"
    if prod(kernel) == 1:
        return "conv_pointwise"
    if tuple(kernel) == tuple(strides):
        return "conv_patch"
    return "conv_spatial"
