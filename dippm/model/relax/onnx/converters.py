"""ONNX operators with an equivalent in Relax, and the Relax names of ONNX element types.

A converter receives the step and its arguments as Relax expressions, and returns the result. It
returns None if this use of the operator has no equivalent, which makes it an opaque call (see
`carried`). To add one: a function here and a line in `CONVERTERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import relax

from dippm.errors import ConversionError
from dippm.model.relax.onnx.tracing import Tensor, TracedStep

_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
    21: "uint4", 22: "int4", 23: "float4_e2m1fn",
}  # fmt: skip


def dtype_of(tensor: Tensor) -> str:
    """Return the Relax name of a tensor's type.

    Raises:
        ConversionError: if there is none (text, complex numbers).
    """
    try:
        return _DTYPES[tensor.element_type]
    except KeyError:
        raise ConversionError(
            f"ONNX tensor {tensor.name!r} has element type {tensor.element_type}, which is no "
            "number that DIPPM can price (text or complex)",
            "Cut preprocessing of text out of the model before the export.",
        ) from None


Expr = Any
Arguments = Sequence[Expr]


class Builder:
    """A block builder for converters."""

    def __init__(self, block_builder: relax.BlockBuilder) -> None:
        self._block_builder = block_builder

    def emit(self, expression: Expr) -> Expr:
        """Bind an expression to a variable."""
        return self._block_builder.emit(expression)


Converter = Callable[[Builder, TracedStep, Arguments], Expr | None]


def _unary(function: Callable[[Expr], Expr]) -> Converter:
    return lambda builder, step, arguments: function(arguments[0])


def _binary(function: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
        result = arguments[0]
        for other in arguments[1:-1]:
            result = builder.emit(function(result, other))
        return function(result, arguments[-1]) if len(arguments) > 1 else result

    return convert


def _out(step: TracedStep) -> Tensor:
    tensor = step.outputs[0]
    assert tensor is not None
    return tensor


def _shape(step: TracedStep, position: int = 0) -> tuple[int, ...]:
    tensor = step.inputs[position]
    assert tensor is not None
    return tensor.shape


def _numbers(step: TracedStep, position: int, name: str) -> tuple[int, ...] | None:
    """Return integers that newer opsets pass as input and older ones as attribute."""
    if position < len(step.inputs):
        tensor = step.inputs[position]
        if tensor is not None:
            if tensor.data is None:
                return None
            return tuple(int(v) for v in tensor.data.reshape(-1))
    given = step.attributes.get(name)
    return None if given is None else tuple(int(v) for v in given)


def _is_given(step: TracedStep, position: int) -> bool:
    return position < len(step.inputs) and step.inputs[position] is not None


def _has_only_first_output(step: TracedStep) -> bool:
    return all(output is None for output in step.outputs[1:])


def _reshape(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    return relax.op.reshape(arguments[0], _out(step).shape)


def _window(step: TracedStep, kernel: Sequence[int], sizes: Sequence[int]) -> tuple[Any, ...]:
    """Return strides, padding (all starts, then all ends) and dilation."""
    rank = len(kernel)
    strides = list(step.attributes.get("strides") or [1] * rank)
    dilation = list(step.attributes.get("dilations") or [1] * rank)
    automatic = step.attributes.get("auto_pad", "NOTSET")
    padding = list(step.attributes.get("pads") or [0] * (2 * rank))
    if automatic == "VALID":
        padding = [0] * (2 * rank)
    elif automatic in ("SAME_UPPER", "SAME_LOWER"):
        starts, ends = [], []
        for size, k, stride, d in zip(sizes, kernel, strides, dilation, strict=True):
            total = max((-(-size // stride) - 1) * stride + d * (k - 1) + 1 - size, 0)
            small, large = total // 2, total - total // 2
            starts.append(small if automatic == "SAME_UPPER" else large)
            ends.append(large if automatic == "SAME_UPPER" else small)
        padding = starts + ends
    return strides, padding, dilation


_CONV = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def _conv(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr | None:
    shape, weight = _shape(step), _shape(step, 1)
    convolve = _CONV.get(len(shape) - 2)
    if convolve is None:
        return None
    strides, padding, dilation = _window(step, weight[2:], shape[2:])
    result = convolve(
        arguments[0],
        arguments[1],
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=int(step.attributes.get("group", 1)),
    )
    return _with_bias(builder, step, arguments, result)


def _with_bias(builder: Builder, step: TracedStep, arguments: Arguments, result: Expr) -> Expr:
    if not _is_given(step, 2):
        return result
    channels = _out(step).shape[1]
    rank = len(_out(step).shape)
    bias = builder.emit(relax.op.reshape(arguments[2], (1, channels, *(1,) * (rank - 2))))
    return relax.op.add(builder.emit(result), bias)


def _batch_norm(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr | None:
    if not _has_only_first_output(step) or step.attributes.get("training_mode"):
        return None
    epsilon = float(step.attributes.get("epsilon", 1e-5))
    result = relax.op.nn.batch_norm(*arguments[:5], axis=1, epsilon=epsilon)
    return relax.TupleGetItem(builder.emit(result), 0)


def _pool(kind: str) -> Converter:
    functions = {rank: getattr(relax.op.nn, f"{kind}_pool{rank}d") for rank in (1, 2, 3)}

    def convert(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr | None:
        kernel = list(step.attributes.get("kernel_shape") or [])
        function = functions.get(len(kernel))
        if function is None or not _has_only_first_output(step):
            return None
        strides, padding, dilation = _window(step, kernel, _shape(step)[2:])
        options = {"count_include_pad": bool(step.attributes.get("count_include_pad", 0))}
        return function(
            arguments[0],
            pool_size=kernel,
            strides=strides,
            padding=padding,
            dilation=dilation,
            ceil_mode=bool(step.attributes.get("ceil_mode", 0)),
            **(options if kind == "avg" else {}),
        )

    return convert


_ADAPTIVE = {
    1: relax.op.nn.adaptive_avg_pool1d,
    2: relax.op.nn.adaptive_avg_pool2d,
    3: relax.op.nn.adaptive_avg_pool3d,
}


def _global_avg_pool(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr | None:
    rank = len(_shape(step)) - 2
    function = _ADAPTIVE.get(rank)
    return None if function is None else function(arguments[0], (1,) * rank)


def _gemm(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    a, b = arguments[:2]
    if step.attributes.get("transA"):
        a = builder.emit(relax.op.permute_dims(a))
    if step.attributes.get("transB"):
        b = builder.emit(relax.op.permute_dims(b))
    result = relax.op.matmul(a, b)
    alpha = float(step.attributes.get("alpha", 1.0))
    if alpha != 1.0:
        dtype = str(arguments[0].ty.dtype)
        result = relax.op.multiply(builder.emit(result), relax.const(alpha, dtype))
    if _is_given(step, 2) and float(step.attributes.get("beta", 1.0)):
        result = relax.op.add(builder.emit(result), arguments[2])
    return result


def _fused_matmul(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    """FusedMatMul of com.microsoft: a product with transposition and a factor."""
    sides = list(arguments[:2])
    for i, name in enumerate(("transA", "transB")):
        if step.attributes.get(name):
            axes = list(range(len(_shape(step, i))))
            axes[-2:] = axes[:-3:-1]
            sides[i] = builder.emit(relax.op.permute_dims(sides[i], axes))
    result = relax.op.matmul(*sides)
    alpha = float(step.attributes.get("alpha", 1.0))
    if alpha == 1.0:
        return result
    factor = relax.const(alpha, str(arguments[0].ty.dtype))
    return relax.op.multiply(builder.emit(result), factor)


def _transpose(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    rank = len(_shape(step))
    permutation = step.attributes.get("perm") or list(range(rank))[::-1]
    return relax.op.permute_dims(arguments[0], [int(axis) for axis in permutation])


def _concat(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    return relax.op.concat(list(arguments), axis=int(step.attributes["axis"]))


def _split(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr | None:
    if any(output is None for output in step.outputs):
        return None
    axis = int(step.attributes.get("axis", 0))
    sizes = [t.shape[axis] for t in step.outputs if t is not None]
    indices = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return relax.op.split(arguments[0], indices, axis=axis) if indices else arguments[0]


def _slice(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr | None:
    starts, ends = _numbers(step, 1, "starts"), _numbers(step, 2, "ends")
    if (
        starts is None
        or ends is None
        or any(_is_given(step, i) and _numbers(step, i, "") is None for i in (3, 4))
    ):
        return None
    axes = _numbers(step, 3, "axes") or tuple(range(len(starts)))
    strides = _numbers(step, 4, "steps") or (1,) * len(starts)
    if any(stride < 0 for stride in strides):
        return None
    shape = _shape(step)
    begin = [_clamp(s, shape[a]) for s, a in zip(starts, axes, strict=True)]
    end = [_clamp(e, shape[a]) for e, a in zip(ends, axes, strict=True)]
    return relax.op.strided_slice(
        arguments[0], axes=list(axes), begin=begin, end=end, strides=list(strides)
    )


def _clamp(position: int, size: int) -> int:
    return min(max(position + size if position < 0 else position, 0), size)


def _gather(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    return relax.op.take(arguments[0], arguments[1], axis=int(step.attributes.get("axis", 0)))


def _expand(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    return relax.op.broadcast_to(arguments[0], _out(step).shape)


def _cast(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    return relax.op.astype(arguments[0], dtype_of(_out(step)))


def _softmax(function: Callable[..., Expr]) -> Converter:
    def convert(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
        shape = _shape(step)
        axis = int(step.attributes.get("axis", -1 if step.opset >= 13 else 1)) % len(shape)
        if step.opset >= 13 or prod(shape[axis + 1 :]) == 1:
            return function(arguments[0], axis=axis)
        flat = (*shape[:axis], prod(shape[axis:]))
        data = builder.emit(relax.op.reshape(arguments[0], flat))
        return relax.op.reshape(builder.emit(function(data, axis=axis)), shape)

    return convert


def _reduce(function: Callable[..., Expr]) -> Converter:
    def convert(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr | None:
        axes = _numbers(step, 1, "axes")
        if axes is None and _is_given(step, 1):
            return None
        if not axes and step.attributes.get("noop_with_empty_axes"):
            return arguments[0]
        keep = bool(step.attributes.get("keepdims", 1))
        return function(arguments[0], axis=list(axes) if axes else None, keepdims=keep)

    return convert


def _arg_reduce(function: Callable[..., Expr]) -> Converter:
    def convert(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
        axis, keep = int(step.attributes.get("axis", 0)), step.attributes.get("keepdims", 1)
        return function(arguments[0], axis=axis, keepdims=bool(keep))

    return convert


def _pad(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr | None:
    pads, mode = _numbers(step, 1, "pads"), step.attributes.get("mode", "constant")
    if pads is None or mode != "constant" or _is_given(step, 3) or any(p < 0 for p in pads):
        return None
    rank = len(pads) // 2
    width = [pads[i + side * rank] for i in range(rank) for side in (0, 1)]
    return relax.op.nn.pad(arguments[0], width)


def _leaky_relu(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    return relax.op.nn.leakyrelu(arguments[0], float(step.attributes.get("alpha", 0.01)))


def _tile(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr | None:
    repeats = _numbers(step, 1, "repeats")
    return None if repeats is None else relax.op.tile(arguments[0], list(repeats))


def _reciprocal(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    return relax.op.divide(relax.const(1.0, str(arguments[0].ty.dtype)), arguments[0])


def _divide(builder: Builder, step: TracedStep, arguments: Arguments) -> Expr:
    is_float = "float" in str(arguments[0].ty.dtype)
    return (relax.op.divide if is_float else relax.op.floor_divide)(*arguments)


CONVERTERS: dict[str, Converter] = {
    "Relu": _unary(relax.op.nn.relu), "LeakyRelu": _leaky_relu,
    "Sigmoid": _unary(relax.op.sigmoid), "Tanh": _unary(relax.op.tanh),
    "Exp": _unary(relax.op.exp), "Log": _unary(relax.op.log), "Sqrt": _unary(relax.op.sqrt),
    "Erf": _unary(relax.op.erf), "Neg": _unary(relax.op.negative), "Abs": _unary(relax.op.abs),
    "Floor": _unary(relax.op.floor), "Ceil": _unary(relax.op.ceil),
    "Round": _unary(relax.op.round), "Sign": _unary(relax.op.sign),
    "Sin": _unary(relax.op.sin), "Cos": _unary(relax.op.cos), "Tan": _unary(relax.op.tan),
    "Not": _unary(relax.op.logical_not), "Reciprocal": _reciprocal,
    "Add": _binary(relax.op.add), "Sub": _binary(relax.op.subtract),
    "Mul": _binary(relax.op.multiply), "Div": _divide, "Pow": _binary(relax.op.power),
    "Sum": _binary(relax.op.add), "Max": _binary(relax.op.maximum),
    "Min": _binary(relax.op.minimum), "Equal": _binary(relax.op.equal),
    "Greater": _binary(relax.op.greater), "GreaterOrEqual": _binary(relax.op.greater_equal),
    "Less": _binary(relax.op.less), "LessOrEqual": _binary(relax.op.less_equal),
    "And": _binary(relax.op.logical_and), "Or": _binary(relax.op.logical_or),
    "Xor": _binary(relax.op.logical_xor),
    "Where": lambda builder, step, arguments: relax.op.where(*arguments),
    "Cast": _cast, "CastLike": _cast,
    "Conv": _conv, "Gemm": _gemm, "MatMul": _binary(relax.op.matmul),
    "FusedMatMul": _fused_matmul,
    "BatchNormalization": _batch_norm, "MaxPool": _pool("max"), "AveragePool": _pool("avg"),
    "GlobalAveragePool": _global_avg_pool, "Softmax": _softmax(relax.op.nn.softmax),
    "LogSoftmax": _softmax(relax.op.nn.log_softmax),
    "Reshape": _reshape, "Flatten": _reshape, "Squeeze": _reshape, "Unsqueeze": _reshape,
    "Transpose": _transpose, "Concat": _concat, "Split": _split, "Slice": _slice,
    "Gather": _gather, "Expand": _expand, "Pad": _pad, "Tile": _tile,
    "ReduceMean": _reduce(relax.op.mean), "ReduceSum": _reduce(relax.op.sum),
    "ReduceMax": _reduce(relax.op.max), "ReduceMin": _reduce(relax.op.min),
    "ReduceProd": _reduce(relax.op.prod), "ArgMax": _arg_reduce(relax.op.argmax),
    "ArgMin": _arg_reduce(relax.op.argmin),
}  # fmt: skip
"""Converter by ONNX name; missing operators become opaque calls."""
