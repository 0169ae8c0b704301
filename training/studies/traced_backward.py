"""Kernels of gradients that autograd computes in one call, as CUDA code launches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

Tensors = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel of such a call.

    Attributes:
        op: name from which `traced_classes` derives the class.
        reads, writes: its tensors; those that are read twice are listed twice.
        args: arguments of the call, where the class follows from them.
        launches: number of launches; None if it follows from the operator.
    """

    op: str
    reads: Tensors
    writes: Tensors
    args: Any = ()
    launches: int | None = None


def _convolution(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    """Gradients of images, weights and bias, each a kernel; operands are made dense for them."""
    grad, image, weight = args[:3]
    wanted = args[-1]
    layout = _layout(image, weight)
    parts = [
        Part("clone", [tensor], [torch.empty_like(tensor, memory_format=layout)])
        for tensor in (grad, image)
        if not tensor.is_contiguous(memory_format=layout)
    ]
    made = iter(outputs)
    as_forward = (image, weight, None, *args[4:])
    names = ("convolution_backward_input", "convolution_backward_weight", "sum")
    reads = ([grad, weight], [grad, image], [grad])
    for name, read, is_wanted in zip(names, reads, wanted, strict=True):
        if is_wanted:
            parts.append(Part(name, read, [next(made)], as_forward))
    return parts


def laid_out(op: str, results: Any, args: Any) -> Any:
    """Return gradients in the layout of CUDA code, which differs from that of fakes."""
    if op not in ("convolution_backward", "native_layer_norm_backward"):
        return results
    is_image = op == "convolution_backward"
    layout = _layout(*args[1:3]) if is_image else torch.contiguous_format
    first, *others = results
    return (None if first is None else first.contiguous(memory_format=layout), *others)


def _layout(image: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    formats = [suggest_memory_format(tensor) for tensor in (image, weight)]
    last = weight.dim() == 4 and torch.channels_last in formats
    return torch.channels_last if last else torch.contiguous_format


def _batch_norm_forward(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    """Read the images twice where statistics are computed, else once."""
    again = [args[0]] if args[5] else []
    return [Part("native_batch_norm", [*again, *inputs], outputs[:1])]


def _batch_norm(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    """One kernel of cuDNN: sums over gradient and images, then reads both again."""
    return [Part("native_batch_norm_backward", [*args[:2], *inputs], outputs)]


def _layer_norm(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    """A kernel for the rows, one for the sums over them."""
    wanted = args[-1]
    dense = [_dense(tensor) for tensor in args[:2]]
    copies = [part for part in dense if part is not None]
    made = list(outputs)
    parts = []
    if wanted[0]:
        parts.append(Part("native_layer_norm_backward", inputs, [made.pop(0)]))
    if made:
        parts.append(Part("native_layer_norm_backward", [*args[:2], *inputs[2:4]], made))
    return [*copies, *parts]


def _group_norm(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    """Sums within rows, factors of them, gradient of images, sums over the batch."""
    grad, image, mean, rstd = args[:4]
    sums = torch.empty((*image.shape[:2], 2), dtype=torch.float32, device=image.device)
    wanted, made = args[-1], list(outputs)
    parts = [Part("native_group_norm_backward", [grad, image], [sums], launches=1)]
    if wanted[0]:
        parts.append(Part("native_group_norm_backward", [sums, mean, rstd], [sums], launches=2))
        parts.append(Part("native_group_norm_backward", [grad, image, sums], [made.pop(0)]))
    if made:
        parts.append(Part("native_group_norm_backward", [sums, mean, rstd], made))
    return parts


def _filled_first(inputs: Tensors, outputs: Tensors, args: Any, op: str) -> list[Part]:
    return [Part("zero_", [], outputs[:1]), Part(op, inputs, outputs[:1])]


def _max_pool(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    grad, image, indices = args[0], args[1], args[-1]
    layout = suggest_memory_format(image)
    copy = _dense(grad, layout)
    parts = [] if copy is None else [copy]
    return [*parts, *_filled_first([grad, indices], outputs, args, "max_pool2d_backward")]


def _avg_pool(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    """Reads the gradient alone, of the images only their sizes."""
    layout = suggest_memory_format(args[1])
    copy = _dense(args[0], layout)
    return [*([] if copy is None else [copy]), Part("avg_pool2d_backward", [args[0]], outputs)]


def _embedding(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    """Indices are sorted, then rows with the same index are added."""
    grad, indices = inputs[:2]
    return [
        Part("zero_", [], outputs),
        Part("sort", [indices], [indices, indices], launches=SORT_LAUNCHES),
        Part("embedding_dense_backward", [grad, indices], [grad]),
    ]


def _put(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    """An update at indices; indices are sorted where equal ones add up."""
    parts = [Part("index_put", inputs, outputs)]
    if len(args) > 3 and args[3]:
        indices = [tensor for tensor in args[1] if tensor is not None]
        parts.insert(0, Part("sort", indices, indices * 2, launches=SORT_LAUNCHES))
    return parts


def _selected(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    """Zeros, and the gradient copied into a part of them."""
    return [Part("zero_", [], outputs), Part("copy", inputs, inputs)]


def _negative_log_likelihood(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    return [Part("zero_", [], outputs), Part("nll_loss_backward", [args[0], args[2]], [args[2]])]


def _softmax(inputs: Tensors, outputs: Tensors, args: Any) -> list[Part]:
    dense = [_dense(tensor) for tensor in args[:2]]
    copies = [part for part in dense if part is not None]
    return [*copies, Part("_softmax_backward_data", list(args[:2]), outputs)]


def _dense(tensor: torch.Tensor, layout: torch.memory_format = torch.contiguous_format) -> Any:
    if tensor.is_contiguous(memory_format=layout):
        return None
    return Part("clone", [tensor], [torch.empty_like(tensor, memory_format=layout)])


SORT_LAUNCHES = 5
"""Number of kernels that sort a list of indices and find equal ones."""

RULES: Mapping[str, Callable[[Tensors, Tensors, Any], list[Part]]] = {
    "convolution_backward": _convolution,
    "native_batch_norm": _batch_norm_forward,
    "native_batch_norm_backward": _batch_norm,
    "native_layer_norm_backward": _layer_norm,
    "native_group_norm_backward": _group_norm,
    "max_pool2d_with_indices_backward": _max_pool,
    "avg_pool2d_backward": _avg_pool,
    "_adaptive_avg_pool2d_backward": _avg_pool,
    "embedding_dense_backward": _embedding,
    "index_put": _put,
    "index_put_": _put,
    "_index_put_impl_": _put,
    "slice_backward": _selected,
    "select_backward": _selected,
    "nll_loss_backward": _negative_log_likelihood,
    "_softmax_backward_data": _softmax,
    "_log_softmax_backward_data": _softmax,
}
"""Rules by aten name. Operators without a rule launch one kernel, as in the forward pass."""
