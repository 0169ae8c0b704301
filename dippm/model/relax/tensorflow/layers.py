"""Converters for layers: convolutions, pools, matrix products and fused layers.

Some convolutions are spelled as several operations by TensorFlow::

    ExpandDims, Conv2D, Squeeze                         a 1-D convolution
    SpaceToBatchND, Conv2D, BatchToSpaceND              a dilated one
    SpaceToBatchND, ExpandDims, Conv2D, Squeeze, ...    a dilated 1-D one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import tensorflow as tf
from tvm import relax

from dippm.model.relax.carried import opaque_call
from dippm.model.relax.tensorflow.call import (
    Converter,
    Match,
    Results,
    TensorFlowCall,
    converts,
    dtype_of,
    shape_of,
)
from dippm.model.relax.tensorflow.static import Statics

CONVERTERS: dict[str, Converter] = {}
op = relax.op

CONVOLUTIONS: dict[int, Callable[..., relax.Expr]] = {
    1: op.nn.conv1d,
    2: op.nn.conv2d,
    3: op.nn.conv3d,
}
TRANSPOSED: dict[int, Callable[..., relax.Expr]] = {
    2: op.nn.conv2d_transpose,
    3: op.nn.conv3d_transpose,
}
AXES = {1: "W", 2: "HW", 3: "DHW"}
DEPTHWISE = "DepthwiseConv2dNative"
KINDS = ("Conv2D", "Conv3D", DEPTHWISE)


@dataclass(frozen=True, slots=True)
class _Window:
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def spatial(layout: str, values: Sequence[int]) -> tuple[int, ...]:
    """Return the entries of the spatial axes, such as (h, w) of an NHWC list."""
    return tuple(values[i] for i, axis in enumerate(layout) if axis not in "NC")


def same_padding(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Return TensorFlow's "SAME" padding: all leading sides, then all trailing sides."""
    before, after = [], []
    for size, width, stride, step in zip(sizes, kernel, strides, dilation, strict=True):
        reach = (-(-size // stride) - 1) * stride + (width - 1) * step + 1
        total = max(reach - size, 0)
        before.append(total // 2)
        after.append(total - total // 2)
    return (*before, *after)


def padding_of(
    call: TensorFlowCall, layout: str, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Return an operation's padding: all leading sides, then all trailing sides."""
    kind = call.attr("padding")
    if kind == "SAME":
        strides = spatial(layout, call.attr("strides"))
        return same_padding(spatial(layout, call.shape()), kernel, strides, dilation)
    if kind == "EXPLICIT":
        pairs = list(call.attr("explicit_paddings"))
        return (*spatial(layout, pairs[::2]), *spatial(layout, pairs[1::2]))
    return (0,) * (2 * len(kernel))


def _convolve(
    call: TensorFlowCall, tensors: tuple[relax.Expr, relax.Expr], window: _Window, layout: str
) -> relax.Expr:
    """Emit a convolution, a depthwise one if `call` is."""
    data, weight = tensors
    kernel = shape_of(weight)
    rank = len(kernel) - 2
    channels = shape_of(data)[layout.index("C")]
    groups, order = channels // kernel[rank], "IO"
    if call.operation.type == DEPTHWISE:
        groups, order = channels, "OI"
        if kernel[-1] > 1:
            packed = (*kernel[:rank], 1, channels * kernel[-1])
            weight, order = call.emit(op.reshape(weight, packed)), "IO"
    return CONVOLUTIONS[rank](
        data,
        weight,
        window.strides,
        window.padding,
        window.dilation,
        groups,
        layout,
        AXES[rank] + order,
    )


@converts(CONVERTERS, *KINDS)
def _conv(call: TensorFlowCall) -> Results:
    layout = call.attr("data_format")
    dilation = spatial(layout, call.attr("dilations"))
    kernel = call.shape(1)[: len(dilation)]
    strides = spatial(layout, call.attr("strides"))
    window = _Window(strides, padding_of(call, layout, kernel, dilation), dilation)
    return _convolve(call, (call.x(0), call.x(1)), window, layout)


def match_convolution(operation: tf.Operation, statics: Statics) -> Match | None:
    """Return the convolution that ends in a `Squeeze` or `BatchToSpaceND`, else None."""
    if operation.type not in ("Squeeze", "BatchToSpaceND"):
        return None
    in_blocks = operation.type == "BatchToSpaceND"
    inner = operation.inputs[0].op if in_blocks else operation
    squeezed = inner.type == "Squeeze"
    conv = inner.inputs[0].op if squeezed else inner
    if conv.type not in KINDS or conv.get_attr("data_format") not in (b"NHWC", b"NDHWC"):
        return None
    x, weight = (_without_height(t) if squeezed else t for t in conv.inputs)
    if x is None or weight is None:
        return None
    blocks = _blocks(operation, x, statics) if in_blocks else None
    if in_blocks and (blocks is None or conv.get_attr("padding") != b"VALID"):
        return None
    source = x.op.inputs[0] if in_blocks else x
    if not source.shape.is_fully_defined():
        return None

    def build(call: TensorFlowCall) -> Results:
        inner_call = TensorFlowCall(conv, call.importer)
        rank = weight.shape.rank - 2
        window = _window(inner_call, source, weight, blocks, rank)
        tensors = (call.expression(source), call.expression(weight))
        return _convolve(inner_call, tensors, window, f"N{AXES[rank]}C")

    return Match((source, weight), build)


def _window(
    call: TensorFlowCall,
    source: tf.Tensor,
    weight: tf.Tensor,
    blocks: tuple[tuple[int, ...], tuple[int, ...]] | None,
    rank: int,
) -> _Window:
    layout = call.attr("data_format")
    strides, dilation = (
        spatial(layout, call.attr(name))[-rank:] for name in ("strides", "dilations")
    )
    if blocks is not None:
        return _Window(strides, blocks[1], blocks[0])
    kernel, padding = weight.shape.as_list()[:rank], (0,) * (2 * rank)
    if call.attr("padding") == "SAME":
        sizes = source.shape.as_list()[1 : 1 + rank]
        padding = same_padding(sizes, kernel, strides, dilation)
    return _Window(strides, padding, dilation)


def _blocks(
    operation: tf.Operation, x: tf.Tensor, statics: Statics
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the dilation and padding expressed by a pair of block operations."""
    if x.op.type != "SpaceToBatchND":
        return None
    values = [statics.value(t) for t in (*x.op.inputs[1:], *operation.inputs[1:])]
    if any(value is None for value in values):
        return None
    block, pads, same_block, crops = (np.asarray(value) for value in values)
    padding = tuple(int(n) for n in (pads - crops).T.reshape(-1))
    if block.tolist() != same_block.tolist() or min(padding) < 0:
        return None
    return tuple(int(b) for b in block), padding


def _without_height(tensor: tf.Tensor) -> tf.Tensor | None:
    """Return the tensor to which an `ExpandDims` added a height of one, else None."""
    source = tensor.op.inputs[0] if tensor.op.type == "ExpandDims" else None
    if source is None or source.shape.rank != 3 or not source.shape.is_fully_defined():
        return None
    sizes = source.shape.as_list()
    taller = [[*sizes[:axis], 1, *sizes[axis:]] for axis in (0, 1)]
    return source if tensor.shape.as_list() in taller else None


@converts(CONVERTERS, "Conv2DBackpropInput", "Conv3DBackpropInputV2", reads=(1, 2))
def _transposed(call: TensorFlowCall) -> Results:
    layout, kernel = call.attr("data_format"), call.shape(1)
    rank = len(kernel) - 2
    strides = spatial(layout, call.attr("strides"))
    dilation = spatial(layout, call.attr("dilations"))
    sizes = spatial(layout, call.shape(2))
    result = spatial(layout, call.out_shape() or call.required(0))
    kind = call.attr("padding")
    padding = same_padding(result, kernel[:rank], strides, dilation) if kind == "SAME" else None
    padding = padding or (0,) * (2 * rank)
    extra = []
    for i in range(rank):
        full = (sizes[i] - 1) * strides[i] + (kernel[i] - 1) * dilation[i] + 1
        extra.append(result[i] - full + padding[i] + padding[rank + i])
    if any(not 0 <= e < max(s, 2) for e, s in zip(extra, strides, strict=True)):
        return None
    groups = call.shape(2)[layout.index("C")] // kernel[-1]
    weights = {2: "HWOI", 3: "DHWOI"}[rank]
    return TRANSPOSED[rank](
        call.x(2), call.x(1), strides, padding, tuple(extra), dilation, groups, layout, weights
    )


# Pools, matrix products and fused layers.

POOLS: dict[str, Callable[..., relax.Expr]] = {
    "MaxPool": op.nn.max_pool2d,
    "MaxPool3D": op.nn.max_pool3d,
    "AvgPool": op.nn.avg_pool2d,
    "AvgPool3D": op.nn.avg_pool3d,
}


@converts(CONVERTERS, *POOLS)
def _pool(call: TensorFlowCall) -> Results:
    layout, kernel = call.attr("data_format"), call.attr("ksize")
    window = spatial(layout, kernel)
    ones = (1,) * len(window)
    return POOLS[call.operation.type](
        call.x(),
        window,
        spatial(layout, call.attr("strides")),
        padding_of(call, layout, window, ones),
        ones,
        False,
        False,
        layout,
    )


@converts(CONVERTERS, "BiasAdd")
def _bias(call: TensorFlowCall) -> Results:
    bias = call.x(1)
    if call.attr("data_format").startswith("NC"):
        trailing = (1,) * (len(call.shape()) - 2)
        bias = call.emit(op.reshape(bias, (*call.shape(1), *trailing)))
    return op.add(call.x(0), bias)


@converts(CONVERTERS, "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _matmul(call: TensorFlowCall) -> Results:
    flags = ("transpose_a", "transpose_b")
    if call.operation.type != "MatMul":
        flags = ("adj_x", "adj_y")
    sides = [
        _swap_last(call, call.x(i)) if call.attr(flag) else call.x(i)
        for i, flag in enumerate(flags)
    ]
    return op.matmul(*sides)


def _swap_last(call: TensorFlowCall, x: relax.Expr) -> relax.Expr:
    rank = len(shape_of(x))
    return call.emit(op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))


@converts(CONVERTERS, "Einsum")
def _einsum(call: TensorFlowCall) -> Results:
    """Convert a product of two tensors to reshapes around one matrix product."""
    equation = call.attr("equation").replace(" ", "")
    terms, _, out = equation.partition("->")
    operands = terms.split(",")
    plain = (
        len(operands) == 2
        and "." not in equation
        and all(len(set(term)) == len(term) for term in (*operands, out))
    )
    if not plain:
        return None
    left, right = operands
    sizes = dict(zip(left + right, (*call.shape(0), *call.shape(1)), strict=True))
    summed = [axis for axis in left if axis in right and axis not in out]
    batch = [axis for axis in left if axis in right and axis in out]
    rows = [axis for axis in left if axis not in right]
    columns = [axis for axis in right if axis not in left]
    if any(axis not in out for axis in (*rows, *columns)) or not summed:
        return None
    is_weight = not call.importer.depends_on_input(call.operation.inputs[1])
    keep_rows = is_weight and not batch
    a = _group_axes(call, call.x(0), left, [batch, rows if keep_rows else [rows], [summed]], sizes)
    b = _group_axes(call, call.x(1), right, [batch, [summed], [columns]], sizes)
    product = call.emit(op.matmul(a, b))
    order = [*batch, *rows, *columns]
    unpacked = tuple(sizes[axis] for axis in order)
    if shape_of(product) != unpacked:
        product = call.emit(op.reshape(product, unpacked))
    if order == list(out):
        return product
    return op.permute_dims(product, [order.index(axis) for axis in out])


def _group_axes(
    call: TensorFlowCall,
    x: relax.Expr,
    axes: str,
    groups: Sequence[Sequence[str | list[str]]],
    sizes: dict[str, int],
) -> relax.Expr:
    """Permute and reshape a tensor to the given axes; a group of axes becomes one axis."""
    flat = [item for group in groups for item in group]
    order = [axis for item in flat for axis in item]
    if order != list(axes):
        x = call.emit(op.permute_dims(x, [axes.index(axis) for axis in order]))
    shape = tuple(prod(sizes[axis] for axis in item) for item in flat)
    return x if shape == shape_of(x) else call.emit(op.reshape(x, shape))


@converts(CONVERTERS, "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_norm(call: TensorFlowCall) -> Results:
    layout, epsilon = call.attr("data_format"), call.attr("epsilon")
    if call.attr("is_training"):
        return _normalised_in_place(call, layout, epsilon)
    axis = layout.index("C")
    statistics = [call.x(i) for i in range(1, 5)]
    result = call.emit(
        op.nn.batch_norm(call.x(0), *statistics, axis=axis, epsilon=epsilon, training=False)
    )
    return relax.TupleGetItem(result, 0)


def _normalised_in_place(call: TensorFlowCall, layout: str, epsilon: float) -> Results:
    """Batch statistics of a (1, rows, size, 1) tensor: the layer norm of Keras 2."""
    shape = call.shape()
    if layout != "NCHW" or shape[0] != 1 or shape[3] != 1:
        return None
    dtype = dtype_of(call.x())
    scale, offset = (relax.const(np.full(shape[2:], v), dtype) for v in (1.0, 0.0))
    return op.nn.layer_norm(call.x(), scale, offset, axes=[2, 3], epsilon=epsilon)


@converts(CONVERTERS, "CudnnRNN", "CudnnRNNV2", "CudnnRNNV3")
def _cudnn(call: TensorFlowCall) -> Results:
    steps, batch, input_size = call.shape(0)
    rows, _, hidden_size = call.shape(1)
    directions = 2 if call.attr("direction") == "bidirectional" else 1
    name = {"lstm": "LSTM", "gru": "GRU"}.get(call.attr("rnn_mode"), "RNN")
    dtype = dtype_of(call.x())
    state = ((rows, batch, hidden_size), dtype)
    types = [((steps, batch, hidden_size * directions), dtype), state, state]
    marks = {
        "hidden_size": hidden_size,
        "input_size": input_size,
        "steps": steps,
        "layers": rows // directions,
        "bidirectional": directions - 1,
    }
    result = call.emit(opaque_call("tf." + name, [call.x(0), call.x(3)], types, marks))
    return [call.emit(relax.TupleGetItem(result, i)) for i in range(3)]
