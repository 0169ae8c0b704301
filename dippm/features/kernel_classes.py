"""Classes of kernels: which a canonical operator launches, and what autocast does to it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dippm.graph.model_graph import STATIC, OpNode
from dippm.graph.operators import operator

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
CHEAP_ACTIVATIONS = frozenset("relu relu6 leaky_relu clip threshold prelu".split())
NORMS = {
    "batch_norm": "batch_norm",
    "layer_norm": "layer_norm",
    "rms_norm": "layer_norm",
    "l2_normalize": "layer_norm",
    "group_norm": "group_norm",
    "instance_norm": "group_norm",
}
CLASS_OF = {
    "softmax": "softmax",
    "log_softmax": "softmax",
    "global_avg_pool": "reduction",
    "global_max_pool": "reduction",
    "concat": "concat",
    "embedding": "gather",
    "gather": "gather",
    "scatter": "gather",
    "resize": "resize",
    "grid_sample": "resize",
    "cast": "cast",
}
CLASS_OF_CATEGORY = {
    "pool": "pool",
    "activation": "costly_activation",
    "elementwise": "elementwise",
    "reduction": "reduction",
    "copy": "copy",
}
AUTOCAST_TO_FP32 = frozenset(
    "layer_norm rms_norm group_norm instance_norm softmax log_softmax exp log power rsqrt "
    "softplus reduce_sum reduce_norm reduce_prod cumsum cumprod reciprocal l2_normalize".split()
)
"""Operators that autocast runs in float32 (the float32 list of torch.amp)."""


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
    kind = NORMS.get(node.op) or CLASS_OF.get(node.op)
    if kind:
        return kind
    if node.op in CHEAP_ACTIVATIONS:
        return "activation"
    broadcasts = len(set(node.in_shapes)) > 1 or reads_parameter(node)
    category = operator(node.op).category
    if category == "elementwise" and broadcasts:
        return "broadcast"
    return CLASS_OF_CATEGORY.get(category, "other")


def reads_parameter(node: OpNode) -> bool:
    """Return whether one operand is a parameter tensor."""
    return bool(node.attributes.get("parameter"))


def class_of_folded(op: str) -> str | None:
    """Return the kernel class of an operator that a canonical rule folded into another one."""
    if op.startswith(STATIC):
        return None
    if op in CHEAP_ACTIVATIONS:
        return "activation"
    return NORMS.get(op) or CLASS_OF.get(op) or CLASS_OF_CATEGORY.get(operator(op).category)
