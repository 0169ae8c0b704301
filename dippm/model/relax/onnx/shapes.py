"""Result shapes of operators that the installed `onnx` does not know: newer and contributed ones.

To add one: a function from input shapes and attributes to the shapes of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from dippm.model.relax.onnx.values import Tensor

Shape = tuple[int, ...]
ShapeRule = Callable[[Sequence[Shape | None], Mapping[str, Any]], list[Shape]]
TypeRule = Callable[[Sequence[Tensor | None], Mapping[str, Any]], list[int]]


def _same(inputs: Sequence[Shape | None], _: Mapping[str, Any]) -> list[Shape]:
    return [inputs[0] or ()]


def _broadcast(inputs: Sequence[Shape | None], _: Mapping[str, Any]) -> list[Shape]:
    return [np.broadcast_shapes(*(shape or () for shape in inputs))]


def _attention(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    """Scaled dot-product attention of opset 23: (batch, heads, steps, size) or without heads."""
    query, value = inputs[0] or (), inputs[2] or ()
    if len(query) == 4:
        return [(*query[:3], value[3])]
    heads = int(attributes.get("q_num_heads", 1))
    key_heads = int(attributes.get("kv_num_heads", heads))
    return [(*query[:2], heads * (value[2] // max(key_heads, 1)))]


def _matmul(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    a, b = inputs[0] or (), inputs[1] or ()
    a = (*a[:-2], a[-1], a[-2]) if attributes.get("transA") else a
    b = (*b[:-2], b[-1], b[-2]) if attributes.get("transB") else b
    return [(*(a[:-2] if len(a) >= len(b) else b[:-2]), a[-2], b[-1])]


def _elementwise_of(*positions: int) -> ShapeRule:
    def rule(inputs: Sequence[Shape | None], _: Mapping[str, Any]) -> list[Shape]:
        return [np.broadcast_shapes(*(inputs[i] or () for i in positions))]

    return rule


def _quantized_product(
    inputs: Sequence[Shape | None], attributes: Mapping[str, Any]
) -> list[Shape]:
    """QGemm: a, its scale and zero point, b, ..."""
    return _matmul([inputs[0], inputs[3]], attributes)


def _recurrent(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    data, weight = inputs[0] or (), inputs[1] or ()
    steps, batch, _ = data
    directions, hidden = weight[0], int(attributes["hidden_size"])
    last = (directions, batch, hidden)
    return [(steps, directions, batch, hidden), last, last]


def _widened(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    """Blocks of few bits (N, blocks, bytes) as the matrix (K, N) that they hold."""
    return [(int(attributes["K"]), int(attributes["N"]))]


SHAPES: dict[str, ShapeRule] = {
    **dict.fromkeys(
        """
        RMSNormalization RotaryEmbedding SimplifiedLayerNormalization SkipLayerNormalization
        SkipSimplifiedLayerNormalization Gelu FastGelu QuickGelu BiasGelu Swish Silu
        MultiHeadAttention GroupQueryAttention LayerNormalization GroupNorm GroupNormalization
        MeanVarianceNormalization
        """.split(),
        _same,
    ),
    "GreaterOrEqual": _broadcast,
    "LessOrEqual": _broadcast,
    "Attention": _attention,
    "FusedMatMul": _matmul,
}
"""Rule by operator name, whatever its domain."""

CONTRIBUTED: dict[str, ShapeRule] = {
    "QLinearAdd": _elementwise_of(0, 3),
    "QLinearMul": _elementwise_of(0, 3),
    **dict.fromkeys("QLinearSigmoid QLinearLeakyRelu QLinearSoftmax".split(), _same),
    "QGemm": _quantized_product,
    "DynamicQuantizeLSTM": _recurrent,
    "DequantizeLinear": _widened,
}
"""Rules that hold in the domain com.microsoft only."""


def _truths(_: Sequence[Tensor | None], __: Mapping[str, Any]) -> list[int]:
    return [TensorProto.BOOL]


def _of_product(inputs: Sequence[Tensor | None], _: Mapping[str, Any]) -> list[int]:
    """A product of bytes with a scale for its result is bytes again, without one a float."""
    scale = inputs[7] if len(inputs) > 7 else None
    first = inputs[0]
    return [first.element_type if scale is not None and first else TensorProto.FLOAT]


def _named(_: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[int]:
    return [int(attributes["element_type"])]


TYPES: dict[str, TypeRule] = {
    "GreaterOrEqual": _truths,
    "LessOrEqual": _truths,
    "QGemm": _of_product,
    "DequantizeLinear": _named,
}
"""Element types of the results of operators whose results are not of the first input's type."""
