"""Readers of 8-bit operators: a product of integers is read as an ordinary product.

Scales and zero points are numbers or vectors; their cost is part of the operator's kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from dippm.model.graph.dialects.call import RawCall
from dippm.model.graph.dialects.convolutions import READERS as CONVOLUTIONS
from dippm.model.graph.dialects.products import READERS as PRODUCTS

Reader = Callable[[RawCall], bool]


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


READERS: dict[str, Reader] = {
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
