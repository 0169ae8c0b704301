"""Kernel class and number of launches of an aten operator."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from dippm.estimate.features.kernels.convolution import cudnn_takes, is_depthwise


def _table(**rows: str) -> dict[str, str]:
    return {name: kind for kind, names in rows.items() for name in names.split()}


CLASSES = _table(
    gemm="addmm mm addmv mv _addmm_activation dot",
    batched_gemm="bmm baddbmm",
    attention="attention attention_backward",
    recurrent="lstm gru rnn_tanh rnn_relu lstm_backward gru_backward rnn_tanh_backward "
    "rnn_relu_backward",
    batch_norm="native_batch_norm_backward native_batch_norm cudnn_batch_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_no_update",
    layer_norm="native_layer_norm _fused_rms_norm native_layer_norm_backward "
    "_fused_rms_norm_backward",
    group_norm="native_group_norm native_group_norm_backward",
    softmax="_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data",
    reduction="sum mean amax amin max min var_mean var std std_mean argmax argmin prod any all "
    "linalg_vector_norm norm cumsum cumprod logsumexp topk sort argsort kthvalue count_nonzero "
    "unique nansum aminmax nll_loss_forward",
    pool="max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool1d avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d "
    "max_pool2d_backward avg_pool2d_backward avg_pool3d_backward",
    activation="relu clamp clamp_min clamp_max hardtanh relu6 leaky_relu _prelu_kernel threshold "
    "hardshrink softshrink threshold_backward hardtanh_backward leaky_relu_backward "
    "_prelu_kernel_backward",
    costly_activation="gelu silu sigmoid hardsigmoid hardswish tanh elu selu celu mish softplus "
    "log_sigmoid_forward glu erf gelu_backward silu_backward sigmoid_backward "
    "hardsigmoid_backward hardswish_backward tanh_backward elu_backward mish_backward "
    "softplus_backward glu_backward",
    copy="clone copy copy_ constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d "
    "replication_pad1d roll repeat flip pixel_shuffle pixel_unshuffle im2col col2im unfold_copy "
    "tril triu repeat_interleave rot90 diagonal_copy diag_embed",
    concat="cat stack",
    gather="embedding index index_select gather scatter scatter_add index_put index_put_ index_add "
    "index_copy take slice_scatter select_scatter _unsafe_index masked_select masked_scatter "
    "embedding_dense_backward nll_loss_backward",
    resize="upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d "
    "upsample_linear1d upsample_nearest3d upsample_trilinear3d grid_sampler_2d "
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa roi_align "
    "upsample_nearest2d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
    "grid_sampler_2d_backward",
    elementwise="fill zero zeros ones full zeros_like ones_like full_like new_zeros new_ones "
    "new_full arange linspace eye scalar_tensor rand randn uniform normal bernoulli",
    other="_fft_r2c _fft_c2r _fft_c2c nonzero multinomial empty_like host_to_device",
)
"""Classes by operator name without a trailing underscore; other operators are element-wise."""

CREATES = frozenset(
    "fill zero zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full "
    "arange linspace eye scalar_tensor rand randn uniform normal".split()
)
"""Operators that write without reading their operands."""

LOOKS_UP = frozenset("embedding index index_select gather take _unsafe_index".split())
"""Operators that read as much of their first operand as they write."""

MADE_CONTIGUOUS = frozenset(
    "native_layer_norm _fused_rms_norm _softmax _log_softmax _safe_softmax roll im2col col2im "
    "max_pool2d_with_indices avg_pool2d".split()
)
"""Operators whose CUDA code copies a first operand that is not dense, unseen by a dispatch mode."""

PRODUCTS = frozenset("addmm mm bmm baddbmm addmv mv _addmm_activation".split())


def class_of(op: str, inputs: Sequence[torch.Tensor], broadcasts: bool, args: Any) -> str:
    """Return the kernel class of a call.

    Args:
        op: aten name of the operator.
        inputs: tensors of the call.
        broadcasts: whether element-wise operands differ in shape, or one is a parameter.
        args: arguments of the call; for a convolution stride, padding, ... from the fourth on.
    """
    if op == "convolution":
        return _convolution(inputs, args)
    if op.startswith("convolution_backward"):
        return _convolution(args[:2], args)
    if op == "_to_copy":
        return "cast"
    if op.startswith("_foreach"):
        return "elementwise"
    stem = op if op in CLASSES else op.rstrip("_")
    return CLASSES.get(stem, "broadcast" if broadcasts else "elementwise")


def _convolution(inputs: Sequence[torch.Tensor], args: Any) -> str:
    image, weight = inputs[0].shape, inputs[1].shape
    stride, dilation, transposed, groups = args[3], args[5], args[6], args[8]
    rank = len(weight) - 2
    if not transposed and is_depthwise(f"conv{rank}d", groups, image[1], weight[0]):
        layouts = [torch.contiguous_format]
        if len(weight) == 4:
            layouts = [suggest_memory_format(tensor) for tensor in inputs[:2]]
        by_cudnn = cudnn_takes(
            image,
            weight[2:],
            stride,
            dilation,
            half=inputs[0].dtype in (torch.float16, torch.bfloat16),
            channels_last=torch.channels_last in layouts,
        )
        return "conv_depthwise" if by_cudnn else "conv_depthwise_direct"
    if len(weight) != 4 or transposed:
        return "conv_other"
    if groups > 1:
        return "conv_grouped"
    if prod(weight[2:]) == 1:
        return "conv_pointwise"
    strides = list(stride) * (2 if len(stride) == 1 else 1)
    return "conv_patch" if list(weight[2:]) == strides else "conv_spatial"


def launches_of(op: str, args: Any) -> int:
    """Return the number of kernels that one call launches, where it is not one."""
    if op == "roll":
        dims = args[2] if len(args) > 2 else ()
        return max(1, len(dims))
    if op == "constant_pad_nd" and any(n > 0 for n in args[1]):
        return 2
    return {"native_group_norm": 3, "_safe_softmax": 4, "baddbmm": 2}.get(op, 1)
