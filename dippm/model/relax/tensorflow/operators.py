"""Converters for element-wise operators, reductions and data movement."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from tvm import relax

from dippm.model.relax.carried import opaque_call
from dippm.model.relax.tensorflow.call import (
    Converter,
    Results,
    TensorFlowCall,
    converts,
    dtype_of,
    shape_of,
)

CONVERTERS: dict[str, Converter] = {}
op = relax.op

UNARY: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "Abs": op.abs, "Acos": op.acos, "Acosh": op.acosh, "Asin": op.asin, "Asinh": op.asinh,
    "Atan": op.atan, "Atanh": op.atanh, "Ceil": op.ceil, "Cos": op.cos, "Cosh": op.cosh,
    "Erf": op.erf, "Exp": op.exp, "Floor": op.floor, "IsFinite": op.isfinite,
    "IsInf": op.isinf, "IsNan": op.isnan, "Log": op.log, "LogicalNot": op.logical_not,
    "Neg": op.negative, "Relu": op.nn.relu, "Rint": op.round, "Round": op.round,
    "Rsqrt": op.rsqrt, "Selu": op.nn.selu, "Sigmoid": op.sigmoid, "Sign": op.sign,
    "Sin": op.sin, "Sinh": op.sinh, "Softplus": op.nn.softplus, "Sqrt": op.sqrt,
    "Square": op.square, "Tan": op.tan, "Tanh": op.tanh, "Invert": op.bitwise_not,
    "ZerosLike": op.zeros_like, "OnesLike": op.ones_like, "Relu6": op.nn.relu6,
}  # fmt: skip
BINARY: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "Add": op.add, "AddV2": op.add, "Sub": op.subtract, "Mul": op.multiply,
    "RealDiv": op.divide, "Div": op.divide, "DivNoNan": op.divide, "MulNoNan": op.multiply,
    "FloorDiv": op.floor_divide, "FloorMod": op.floor_mod, "Maximum": op.maximum,
    "Minimum": op.minimum, "Pow": op.power, "Equal": op.equal, "NotEqual": op.not_equal,
    "Less": op.less, "LessEqual": op.less_equal, "Greater": op.greater,
    "GreaterEqual": op.greater_equal, "LogicalAnd": op.logical_and, "LogicalOr": op.logical_or,
    "BitwiseAnd": op.bitwise_and, "BitwiseOr": op.bitwise_or, "BitwiseXor": op.bitwise_xor,
    "Atan2": op.atan2,
}  # fmt: skip
REDUCTIONS: dict[str, Callable[..., relax.Expr]] = {
    "Mean": op.mean,
    "Sum": op.sum,
    "Max": op.max,
    "Min": op.min,
    "Prod": op.prod,
}


def _unary(call: TensorFlowCall) -> Results:
    return UNARY[call.operation.type](call.x())


def _binary(call: TensorFlowCall) -> Results:
    return BINARY[call.operation.type](call.x(0), call.x(1))


def _reduce(call: TensorFlowCall) -> Results:
    axes = [a % max(len(call.shape()), 1) for a in call.required(1)]
    if not axes:
        return call.x()
    return REDUCTIONS[call.operation.type](call.x(), axes, call.attr("keep_dims"))


CONVERTERS.update(dict.fromkeys(UNARY, Converter(_unary)))
CONVERTERS.update(dict.fromkeys(BINARY, Converter(_binary)))
CONVERTERS.update(dict.fromkeys(REDUCTIONS, Converter(_reduce, (0,))))


@converts(CONVERTERS, "Mul")
def _multiply(call: TensorFlowCall) -> Results:
    """Skip the multiplication by a constant one in `tf.nn.silu`."""
    for given, other in ((0, 1), (1, 0)):
        factor = call.operation.inputs[given]
        value = call.static(given) if factor.op.type == "Const" else None
        is_one = value is not None and value.size == 1 and value.reshape(()) == 1
        if is_one and factor.shape.rank <= len(call.shape(other)):
            return call.x(other)
    return op.multiply(call.x(0), call.x(1))


@converts(CONVERTERS, "SquaredDifference")
def _squared_difference(call: TensorFlowCall) -> Results:
    return op.square(call.emit(op.subtract(call.x(0), call.x(1))))


@converts(CONVERTERS, "EuclideanNorm", reads=(0,))
def _norm(call: TensorFlowCall) -> Results:
    axes = [a % max(len(call.shape()), 1) for a in call.required(1)]
    total = call.emit(op.sum(call.emit(op.square(call.x())), axes, call.attr("keep_dims")))
    return op.sqrt(total)


@converts(CONVERTERS, "AddN")
def _add_n(call: TensorFlowCall) -> Results:
    total = call.x(0)
    for i in range(1, len(call.operation.inputs)):
        total = call.emit(op.add(total, call.x(i)))
    return total


@converts(CONVERTERS, "LeakyRelu")
def _leaky_relu(call: TensorFlowCall) -> Results:
    return op.nn.leakyrelu(call.x(), call.attr("alpha"))


@converts(CONVERTERS, "Softmax")
def _softmax(call: TensorFlowCall) -> Results:
    return op.nn.softmax(call.x(), -1)


@converts(CONVERTERS, "LogSoftmax")
def _log_softmax(call: TensorFlowCall) -> Results:
    return op.nn.log_softmax(call.x(), -1)


@converts(CONVERTERS, "ClipByValue")
def _clip(call: TensorFlowCall) -> Results:
    low, high = call.static(1), call.static(2)
    if low is None or high is None or low.size != 1 or high.size != 1:
        return None
    return op.clip(call.x(), float(low), float(high))


@converts(CONVERTERS, "Cast")
def _cast(call: TensorFlowCall) -> Results:
    dtype = call.operation.outputs[0].dtype.name
    return call.x() if dtype == dtype_of(call.x()) else op.astype(call.x(), dtype)


@converts(CONVERTERS, "Select", "SelectV2")
def _where(call: TensorFlowCall) -> Results:
    condition, x = call.x(0), call.x(1)
    if call.operation.type == "Select" and len(shape_of(condition)) == 1 < len(shape_of(x)):
        rows = (shape_of(condition)[0],) + (1,) * (len(shape_of(x)) - 1)
        condition = call.emit(op.reshape(condition, rows))
    return op.where(condition, x, call.x(2))


@converts(CONVERTERS, "ArgMax", "ArgMin", reads=(0,))
def _argmax(call: TensorFlowCall) -> Results:
    function = op.argmax if call.operation.type == "ArgMax" else op.argmin
    found = call.emit(function(call.x(), call.required(1)[0]))
    dtype = call.operation.outputs[0].dtype.name
    return found if dtype == dtype_of(found) else op.astype(found, dtype)


@converts(CONVERTERS, "TopKV2", reads=(0,))
def _top_k(call: TensorFlowCall) -> Results:
    found = call.emit(op.topk(call.x(), k=call.required(1)[0], axis=-1))
    return [relax.TupleGetItem(found, i) for i in range(2)]


@converts(CONVERTERS, "Cumsum", reads=(0,))
def _cumsum(call: TensorFlowCall) -> Results:
    return op.cumsum(call.x(), call.required(1)[0])


@converts(CONVERTERS, "OneHot", reads=(0,))
def _one_hot(call: TensorFlowCall) -> Results:
    shape, dtype = call.out_shape(), call.operation.outputs[0].dtype.name
    return None if shape is None else opaque_call("tf.OneHot", [call.x()], [(shape, dtype)])


@converts(CONVERTERS, "Reshape", reads=(0,))
def _reshape(call: TensorFlowCall) -> Results:
    shape = call.out_shape() or call.required(1)
    return call.x() if shape == shape_of(call.x()) else op.reshape(call.x(), shape)


@converts(CONVERTERS, "Squeeze", reads=(0,))
def _squeeze(call: TensorFlowCall) -> Results:
    axes = list(call.attr("squeeze_dims")) or None
    return op.squeeze(call.x(), axes)


@converts(CONVERTERS, "ExpandDims", reads=(0,))
def _expand_dims(call: TensorFlowCall) -> Results:
    return op.expand_dims(call.x(), call.required(1)[0])


@converts(CONVERTERS, "Transpose", reads=(0,))
def _transpose(call: TensorFlowCall) -> Results:
    permutation = list(call.required(1))
    identity = permutation == sorted(permutation)
    return call.x() if identity else op.permute_dims(call.x(), permutation)


@converts(CONVERTERS, "ConcatV2")
def _concat(call: TensorFlowCall) -> Results:
    last = len(call.operation.inputs) - 1
    parts = [call.x(i) for i in range(last)]
    return parts[0] if last == 1 else op.concat(parts, call.required(last)[0])


@converts(CONVERTERS, "Pack")
def _stack(call: TensorFlowCall) -> Results:
    parts = [call.x(i) for i in range(len(call.operation.inputs))]
    return op.stack(parts, call.attr("axis"))


@converts(CONVERTERS, "Unpack")
def _unstack(call: TensorFlowCall) -> Results:
    axis, count = call.attr("axis"), call.attr("num")
    if count == 1:
        return op.squeeze(call.x(), [axis])
    parts = call.emit(op.split(call.x(), count, axis))
    items = [call.emit(relax.TupleGetItem(parts, i)) for i in range(count)]
    return [op.squeeze(item, [axis]) for item in items]


@converts(CONVERTERS, "Split", reads=(1,))
def _split(call: TensorFlowCall) -> Results:
    count = call.attr("num_split")
    if count == 1:
        return call.x(1)
    parts = call.emit(op.split(call.x(1), count, call.required(0)[0]))
    return [relax.TupleGetItem(parts, i) for i in range(count)]


@converts(CONVERTERS, "SplitV", reads=(0,))
def _split_sizes(call: TensorFlowCall) -> Results:
    axis = call.required(2)[0]
    sizes = [output.shape.as_list()[axis] for output in call.operation.outputs]
    if len(sizes) == 1:
        return call.x()
    parts = call.emit(op.split(call.x(), [int(i) for i in np.cumsum(sizes)[:-1]], axis))
    return [relax.TupleGetItem(parts, i) for i in range(len(sizes))]


@converts(CONVERTERS, "StridedSlice", reads=(0,))
def _strided_slice(call: TensorFlowCall) -> Results:
    ranges = _ranges(call)
    if ranges is None:
        return None
    shape, x = call.shape(), call.x()
    cut = [
        i for i, (start, stop, step) in ranges.items() if (start, stop, step) != (0, shape[i], 1)
    ]
    if cut:
        starts, stops, steps = zip(*(ranges[i] for i in cut), strict=True)
        x = call.emit(op.strided_slice(x, cut, list(starts), list(stops), list(steps)))
    result = call.out_shape()
    if result is None or result == shape_of(x):
        return x
    return op.reshape(x, result)


def _ranges(call: TensorFlowCall) -> dict[int, tuple[int, int, int]] | None:
    """Return (start, stop, step) by axis; None if they depend on data or are reversed."""
    given = [call.integers(i) for i in (1, 2, 3)]
    if any(values is None for values in given):
        return None
    begin, end, strides = (values or () for values in given)
    bit = {
        name: [bool(call.attr(f"{name}_mask") >> i & 1) for i in range(len(begin))]
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    shape, ranges, axis = call.shape(), {}, 0
    consumed = sum(not (e or n) for e, n in zip(bit["ellipsis"], bit["new_axis"], strict=True))
    for i in range(len(begin)):
        if bit["ellipsis"][i]:
            axis += len(shape) - consumed
        elif not bit["new_axis"][i]:
            size = shape[axis]
            if bit["shrink_axis"][i]:
                start = begin[i] % max(size, 1)
                ranges[axis] = (start, start + 1, 1)
            else:
                asked = slice(
                    None if bit["begin"][i] else begin[i],
                    None if bit["end"][i] else end[i],
                    strides[i],
                )
                ranges[axis] = asked.indices(size)
                if strides[i] < 0:
                    return None
            axis += 1
    return ranges


@converts(CONVERTERS, "Slice", reads=(0,))
def _slice(call: TensorFlowCall) -> Results:
    begin, result = call.integers(1), call.out_shape()
    if begin is None or result is None:
        return None
    shape = call.shape()
    cut = [i for i in range(len(shape)) if result[i] != shape[i]]
    if not cut:
        return call.x()
    stops = [begin[i] + result[i] for i in cut]
    return op.strided_slice(call.x(), cut, [begin[i] for i in cut], stops, [1] * len(cut))


@converts(CONVERTERS, "Pad", "PadV2", "MirrorPad", reads=(0,))
def _pad(call: TensorFlowCall) -> Results:
    widths = list(call.required(1))
    if not any(widths):
        return call.x()
    if call.operation.type == "MirrorPad":
        return op.nn.pad(call.x(), widths, pad_mode="reflect")
    return op.nn.pad(call.x(), widths)


@converts(CONVERTERS, "SpaceToBatchND", reads=(0,))
def _space_to_batch(call: TensorFlowCall) -> Results:
    """Convert `SpaceToBatchND`: pad, and move the block positions before the batch."""
    block, pads = call.required(1), call.required(2)
    rest = len(call.shape()) - 1 - len(block)
    x = call.x()
    if any(pads):
        x = call.emit(op.nn.pad(x, [0, 0, *pads, *([0, 0] * rest)]))
    batch, *sizes = shape_of(x)
    split = [n for size, b in zip(sizes, block, strict=False) for n in (size // b, b)]
    tail = sizes[len(block) :]
    x = call.emit(op.reshape(x, (batch, *split, *tail)))
    rank = 2 * len(block)
    order = [*range(2, rank + 1, 2), 0, *range(1, rank, 2), *range(rank + 1, rank + 1 + rest)]
    x = call.emit(op.permute_dims(x, order))
    packed = (batch * prod(block), *(s // b for s, b in zip(sizes, block, strict=False)), *tail)
    return op.reshape(x, packed)


@converts(CONVERTERS, "BatchToSpaceND", reads=(0,))
def _batch_to_space(call: TensorFlowCall) -> Results:
    """Convert the inverse of `SpaceToBatchND`, with crops instead of pads."""
    block, crops = call.required(1), call.required(2)
    batch, *sizes = call.shape()
    rank, tail = len(block), sizes[len(block) :]
    x = call.emit(op.reshape(call.x(), (*block, batch // prod(block), *sizes)))
    pairs = [axis for i in range(rank) for axis in (rank + 1 + i, i)]
    order = [rank, *pairs, *range(2 * rank + 1, 2 * rank + 1 + len(tail))]
    x = call.emit(op.permute_dims(x, order))
    whole = [size * b for size, b in zip(sizes, block, strict=False)]
    x = call.emit(op.reshape(x, (batch // prod(block), *whole, *tail)))
    if not any(crops):
        return x
    axes = list(range(1, rank + 1))
    stops = [size - crops[2 * i + 1] for i, size in enumerate(whole)]
    return op.strided_slice(x, axes, list(crops[::2]), stops, [1] * rank)


@converts(CONVERTERS, "Tile", reads=(0,))
def _tile(call: TensorFlowCall) -> Results:
    shape, result = call.shape(), call.out_shape()
    times = call.integers(1)
    if times is None and result is not None:
        times = tuple(b // a for a, b in zip(shape, result, strict=True))
    times = times or call.required(1)
    return call.x() if set(times) <= {1} else op.tile(call.x(), times)


@converts(CONVERTERS, "BroadcastTo", reads=(0,))
def _broadcast(call: TensorFlowCall) -> Results:
    shape = call.out_shape() or call.required(1)
    return call.x() if shape == shape_of(call.x()) else op.broadcast_to(call.x(), shape)


@converts(CONVERTERS, "Fill", reads=(1,))
def _fill(call: TensorFlowCall) -> Results:
    shape = call.out_shape() or call.required(0)
    return op.full(shape, call.x(1), dtype_of(call.x(1)))


@converts(CONVERTERS, "ReverseV2", reads=(0,))
def _reverse(call: TensorFlowCall) -> Results:
    x = call.x()
    for axis in call.required(1):
        x = call.emit(op.flip(x, axis))
    return x


@converts(CONVERTERS, "Roll", reads=(0,))
def _roll(call: TensorFlowCall) -> Results:
    shape, dtype = call.shape(), dtype_of(call.x())
    marks = {"shift": call.integers(1) or (), "axis": call.integers(2) or ()}
    return opaque_call("tf.Roll", [call.x()], [(shape, dtype)], marks)


@converts(CONVERTERS, "GatherV2", "Gather", reads=(0, 1))
def _gather(call: TensorFlowCall) -> Results:
    is_v2 = call.operation.type == "GatherV2"
    if is_v2 and call.attr("batch_dims"):
        shape, dtype = call.out_shape(), call.operation.outputs[0].dtype.name
        inputs = [call.x(0), call.x(1)]
        return None if shape is None else opaque_call("tf.GatherV2", inputs, [(shape, dtype)])
    return op.take(call.x(0), call.x(1), axis=call.required(2)[0] if is_v2 else 0)


@converts(
    CONVERTERS, "ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea", reads=(0,)
)
def _resize(call: TensorFlowCall) -> Results:
    result = call.out_shape()
    height, width = (result[1], result[2]) if result else call.required(1)
    method = {"ResizeNearestNeighbor": "nearest_neighbor", "ResizeBicubic": "cubic"}
    return op.image.resize2d(
        call.x(), (height, width), layout="NHWC", method=method.get(call.operation.type, "linear")
    )
