"""Readers of operators whose canonical form depends on their attributes, and of 8-bit operators.

A product of integers is read as an ordinary product. Scales and zero points are numbers or vectors;
their cost is part of the operator's kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from dippm.model.graph.dialects import composed, convolutions, products, recurrent, shapes
from dippm.model.graph.dialects.call import RawCall
from dippm.model.graph.dialects.convolutions import READERS as CONVOLUTIONS
from dippm.model.graph.dialects.products import READERS as PRODUCTS
from dippm.model.graph.operators import OPERATORS

Reader = Callable[[RawCall], bool]


def _clip(call: RawCall) -> bool:
    low = call.number("min", "min_val", "arg1", default=float("-inf"))
    high = call.number("max", "max_val", "arg2", default=float("inf"))
    bounds = [v.scalar for v in call.inputs[1:3]]
    if bounds and bounds[0] is not None:
        low = bounds[0]
    if len(bounds) > 1 and bounds[1] is not None:
        high = bounds[1]
    op = "relu6" if (low, high) == (0.0, 6.0) else "clip"
    if low == 0.0 and high > 1e30:
        op = "relu"
    return call.first(op, call.inputs[:1])


def _gelu(call: RawCall) -> bool:
    return call.first("gelu", call.inputs[:1])


def _along_axis(op: str) -> Reader:
    def read(call: RawCall) -> bool:
        return call.first(op, call.inputs[:1], axis=call.axis(default=-1))

    return read


def _batch_norm(call: RawCall) -> bool:
    axis = call.axis("axis", default=1)
    if call.text("data_format").endswith("C") and len(call.inputs[0].shape) > 2:
        axis = len(call.inputs[0].shape) - 1
    return call.first("batch_norm", call.inputs[:1], axis=axis)


def _layer_norm(op: str) -> Reader:
    def read(call: RawCall) -> bool:
        rank = len(call.inputs[0].shape)
        axes = call.integers("axes") or call.integers("axis") or (-1,)
        if call.name.startswith("onnx."):
            axes = tuple(range(axes[0] % rank, rank))
        if shape := call.integers("normalized_shape"):
            axes = tuple(range(rank - len(shape), rank))
        return call.first(op, call.inputs[:1], axes=tuple(sorted(a % rank for a in axes)))

    return read


def _group_norm(call: RawCall) -> bool:
    groups = call.integer("num_groups", "group", default=1)
    return call.first("group_norm", call.inputs[:1], groups=groups)


def _instance_norm(call: RawCall) -> bool:
    return call.first("instance_norm", call.inputs[:1])


def _reduce(op: str) -> Reader:
    def read(call: RawCall) -> bool:
        rank, out = len(call.inputs[0].shape), len(call.out_shape)
        keep = int(rank == out)
        axes = call.axes("axis", "axes", "dim", "dims", "reduction_indices")
        if len(call.inputs) > 1 and op in ("reduce_max", "reduce_min"):
            return False
        return call.first(op, call.inputs[:1], axes=axes, keepdims=keep)

    return read


def _moments(op: str) -> Reader:
    """Two reductions in one pass: a node with both results."""

    def read(call: RawCall) -> bool:
        keep = int(len(call.inputs[0].shape) == len(call.out_shape))
        call.emit(op, call.inputs[:1], axes=call.axes(), keepdims=keep)
        return True

    return read


def _max_or_min(op: str) -> Reader:
    """A name that is a reduction with one argument and element-wise with two."""

    def read(call: RawCall) -> bool:
        if len(call.inputs) > 1 and call.out_shape and "axis" not in call.attributes:
            return call.first(op, call.inputs)
        return _reduce("reduce_" + op[:3])(call)

    return read


def _ordered(op: str) -> Reader:
    def read(call: RawCall) -> bool:
        call.emit(op, call.inputs[:1], axis=call.axis(default=-1))
        return True

    return read


def _scan(op: str) -> Reader:
    def read(call: RawCall) -> bool:
        call.emit(op, call.inputs[:1], axes=(call.axis(default=0),))
        return True

    return read


def _resize(call: RawCall) -> bool:
    mode = call.text("mode", "method", "interpolation") or call.name.rpartition("upsample_")[2]
    spelled = mode.lower()
    kinds = ("nearest", "cubic", "linear", "area")
    mode = next((kind for kind in kinds if kind in spelled), "nearest")
    return shapes.channels_first(
        call, lambda source, shape: call.step("resize", [source], shape, mode=mode)
    )


def _squared_difference(call: RawCall) -> bool:
    difference = call.step("subtract", call.inputs, call.out_shape)
    return call.first("square", [difference])


def _plain(op: str) -> Reader:
    def read(call: RawCall) -> bool:
        return call.first(op, call.inputs)

    return read


def _threshold(call: RawCall) -> bool:
    return call.first("threshold", call.inputs[:1])


# Operators of 8 bits.


def _with_operands(reader: Reader, *positions: int) -> Reader:
    """Return a reader that drops scales and zero points and reads the rest as usual."""

    def read(call: RawCall) -> bool:
        call.inputs = [call.inputs[i] for i in positions if i < len(call.inputs)]
        return reader(call)

    return read


def _elementwise(op: str, *positions: int) -> Reader:
    return _with_operands(lambda call: call.first(op, call.inputs), *positions)


def _quantize(op: str) -> Reader:
    def read(call: RawCall) -> bool:
        return call.first(op, call.inputs[:1])

    return read


def _dynamic(call: RawCall) -> bool:
    """Read a quantisation whose scale and zero point come from the tensor's own extremes."""
    source = call.inputs[0]
    axes = tuple(range(len(source.shape)))
    for op, out in zip(("reduce_max", "reduce_min"), call.outputs[1:3], strict=False):
        call.draft.emit(op, [source], outputs=[out], axes=axes, keepdims=0)
    return call.first("quantize", [source, *call.outputs[1:3]])


_QUANTISED: dict[str, Reader] = {
    "convinteger": _with_operands(CONVOLUTIONS["conv"], 0, 1),
    "matmulinteger": _with_operands(PRODUCTS["batch_matmul"], 0, 1),
    "intmm": _with_operands(PRODUCTS["batch_matmul"], 0, 1),
    "weightint8packmm": _with_operands(PRODUCTS["linear"], 0, 1),
    "qlinearconv": _with_operands(CONVOLUTIONS["conv"], 0, 3),
    "qlinearmatmul": _with_operands(PRODUCTS["batch_matmul"], 0, 3),
    "qgemm": _with_operands(PRODUCTS["gemm"], 0, 3),
    "qlinearadd": _elementwise("add", 0, 3),
    "qlinearmul": _elementwise("multiply", 0, 3),
    "qlinearsigmoid": _elementwise("sigmoid", 0),
    "qlinearleakyrelu": _elementwise("leaky_relu", 0),
    "quantize": _quantize("quantize"),
    "dequantize": _quantize("dequantize"),
    "dynamicquantizelinear": _dynamic,
}


READERS: dict[str, Reader] = {
    **convolutions.READERS,
    **composed.READERS,
    **products.READERS,
    **_QUANTISED,
    **recurrent.READERS,
    **shapes.READERS,
    "clip": _clip,
    "gelu": _gelu,
    "softmax": _along_axis("softmax"),
    "log_softmax": _along_axis("log_softmax"),
    "glu": _along_axis("glu"),
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm("layer_norm"),
    "rms_norm": _layer_norm("rms_norm"),
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    **{
        row.name: _reduce(row.name)
        for row in OPERATORS.values()
        if row.category == "reduction" and row.name.startswith(("reduce", "arg"))
    },
    "max": _max_or_min("maximum"),
    "min": _max_or_min("minimum"),
    "onnx.max": _plain("maximum"),
    "onnx.min": _plain("minimum"),
    "top_k": _ordered("top_k"),
    "sort": _ordered("sort"),
    "argsort": _ordered("argsort"),
    "cumsum": _scan("cumsum"),
    "cumprod": _scan("cumprod"),
    "cummax": _scan("cummax"),
    "aminmax": _moments("reduce_max"),
    "varmean": _moments("reduce_variance"),
    "stdmean": _moments("reduce_std"),
    "resize": _resize,
    "squareddifference": _squared_difference,
    "threshold": _threshold,
}
"""Reader by canonical name, or by a folded spelling (with its dialect) that implies more."""
