"""Classes of kernels: which a canonical operator launches, and what autocast does to it.

An operator's class stands in its row of the operator table, as `kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dippm.graph.model_graph import STATIC, OpNode
from dippm.graph.operators import OPERATORS, operator

KERNEL_CLASSES = (
    "conv_pointwise",
    "conv_spatial",
    "conv_patch",
    "conv_grouped",
    "conv_depthwise",
    "conv_other",
    "gemm",
    "batched_gemm",
    "attention",
    "recurrent",
    "batch_norm",
    "layer_norm",
    "group_norm",
    "softmax",
    "reduction",
    "pool",
    "activation",
    "costly_activation",
    "elementwise",
    "broadcast",
    "copy",
    "concat",
    "cast",
    "gather",
    "resize",
    "other",
)
AUTOCAST_TO_FP32 = frozenset(row.name for row in OPERATORS.values() if row.autocast == "float32")
"""Operators that autocast runs in float32 (the float32 list of torch.amp)."""
_STREAMING = ("pool", "norm", "activation", "elementwise", "reduction", "copy")


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


def class_of_operator(node: OpNode) -> str:
    """Return the kernel class of an operator that is no matrix product."""
    row = operator(node.op)
    broadcasts = len(set(node.in_shapes)) > 1 or reads_parameter(node)
    return "broadcast" if row.kernel == "elementwise" and broadcasts else row.kernel


def reads_parameter(node: OpNode) -> bool:
    """Return whether one operand is a parameter tensor."""
    return bool(node.attributes.get("parameter"))


def class_of_folded(op: str) -> str | None:
    """Return the kernel class of an operator that a canonical rule folded into another one."""
    row = operator(op)
    return row.kernel if row.category in _STREAMING and not op.startswith(STATIC) else None
