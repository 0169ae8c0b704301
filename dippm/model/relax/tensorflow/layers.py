"""Converters for pools, matrix products and fused layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from tvm import relax

from dippm.model.relax.opaque import opaque_call
from dippm.model.relax.tensorflow.call import (
    Converter,
    Results,
    TensorFlowCall,
    converts,
    dtype_of,
    shape_of,
)
from dippm.model.relax.tensorflow.convolutions import padding_of, spatial

CONVERTERS: dict[str, Converter] = {}
op = relax.op

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
