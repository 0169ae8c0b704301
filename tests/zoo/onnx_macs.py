"""Multiply-accumulates of an ONNX model, counted from its own shapes and nothing of DIPPM's.

Shapes come from ONNX's inference over the whole model, or from running it with the reference
implementation where that leaves some open.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

Shape = tuple[int, ...]

_FREE_OF_PRODUCTS = frozenset(
    """
    Loop Scan If SequenceMap Attention DFT STFT GridSample Resize Upsample AffineGrid Scatter
    """.split()
)
_BY_MATRIX = ("MatMul", "MatMulInteger", "QLinearMatMul")
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def macs(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> int | None:
    """Return the products of a model, None where nobody can say.

    Args:
        model: a complete model.
        feeds: an array by input name.
    """
    nodes = list(model.graph.node)
    if model.functions or any(n.op_type in _FREE_OF_PRODUCTS or n.domain for n in nodes):
        return None
    shapes = _inferred(model)
    needed = [n for n in nodes if _counts(n)]
    names = {name for n in needed for name in [*n.input, *n.output] if name}
    if not names <= shapes.keys():
        shapes = _run(model, feeds)
    return sum(_node(n, shapes) for n in needed)


def _counts(node: onnx.NodeProto) -> bool:
    return node.op_type in _COUNTED


def _inferred(model: onnx.ModelProto) -> dict[str, Shape]:
    try:
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
    except shape_inference.InferenceError:
        return {}
    shapes = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        tensor = value.type.tensor_type
        sizes = [d.dim_value for d in tensor.shape.dim]
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shapes[value.name] = tuple(sizes)
    return shapes


def _run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Shape]:
    results = ReferenceEvaluator(model).run(None, dict(feeds), intermediate=True)
    shapes = {t.name: numpy_helper.to_array(t).shape for t in model.graph.initializer}
    return shapes | {name: np.shape(value) for name, value in results.items()}


def _node(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs = [shapes.get(name, ()) for name in node.input]
    outputs = [shapes.get(name, ()) for name in node.output if name]
    return int(_COUNTED[node.op_type](attributes, inputs, outputs))


def _conv(_: Any, i: list[Shape], o: list[Shape]) -> int:
    return prod(o[0]) * prod(i[1][1:])


def _qlinear_conv(_: Any, i: list[Shape], o: list[Shape]) -> int:
    return prod(o[0]) * prod(i[3][1:])


def _conv_transpose(_: Any, i: list[Shape], o: list[Shape]) -> int:
    return prod(i[0]) * prod(i[1][1:])


def _gemm(a: Any, i: list[Shape], o: list[Shape]) -> int:
    return prod(o[0]) * i[0][0 if a.get("transA") else 1]


def _matmul(_: Any, i: list[Shape], o: list[Shape]) -> int:
    return prod(o[0]) * i[0][-1]


def _recurrent(gates: int) -> Any:
    def count(a: Any, i: list[Shape], o: list[Shape]) -> int:
        steps, batch, size = i[0]
        if a.get("layout"):
            steps, batch = batch, steps
        directions, rows, _ = i[1]
        hidden = i[2][2]
        return steps * batch * directions * rows * (size + hidden)

    return count


def _einsum(a: Any, i: list[Shape], o: list[Shape]) -> int:
    """Every combination of the letters of a product with two terms is one."""
    equation = a["equation"].decode().replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    result = equation.partition("->")[2]
    if len(terms) != 2 or "." in equation or "->" not in equation:
        return 0 if len(terms) < 2 else _ellipsis(terms, i, o)
    sizes = {
        letter: size
        for term, shape in zip(terms, i, strict=True)
        for letter, size in zip(term, shape, strict=True)
    }
    return prod(sizes.values()) if set(sizes) - set(result) else 0


def _ellipsis(terms: list[str], i: list[Shape], o: list[Shape]) -> int:
    summed = set(terms[0].replace("...", "")) & set(terms[1].replace("...", ""))
    letters = terms[0].replace("...", "")
    place = {letter: -(len(letters) - n) for n, letter in enumerate(letters)}
    inner = prod(i[0][place[k]] for k in summed if terms[0].endswith(letters))
    return prod(o[0]) * inner


_COUNTED = {
    "Conv": _conv, "ConvInteger": _conv, "QLinearConv": _qlinear_conv, "DeformConv": _conv,
    "ConvTranspose": _conv_transpose, "Gemm": _gemm,
    **dict.fromkeys(_BY_MATRIX, _matmul),
    **{name: _recurrent(gates) for name, gates in _GATES.items()},
    "Einsum": _einsum,
}  # fmt: skip
