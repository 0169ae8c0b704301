"""Result shapes of operators that the installed `onnx` does not know: newer and contributed ones.

To add one: a function from input shapes and attributes to the shapes of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from dippm.relax.onnx.values import Tensor

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


def _packed_attention(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    """Attention of com.microsoft: the projection is inside, packed as (in, q + k + v)."""
    data, weight = inputs[0] or (), inputs[1] or ()
    sizes = attributes.get("qkv_hidden_sizes")
    width = int(sizes[2]) if sizes else weight[-1] // 3
    return [(*data[:-1], width)]


def _matmul(inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
    a, b = inputs[0] or (), inputs[1] or ()
    a = (*a[:-2], a[-1], a[-2]) if attributes.get("transA") else a
    b = (*b[:-2], b[-1], b[-2]) if attributes.get("transB") else b
    return [(*(a[:-2] if len(a) >= len(b) else b[:-2]), a[-2], b[-1])]


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

CONTRIBUTED: dict[str, ShapeRule] = {"Attention": _packed_attention}
"""Rules that hold in the domain com.microsoft only."""


def _truths(_: Sequence[Tensor | None], __: Mapping[str, Any]) -> list[int]:
    return [TensorProto.BOOL]


TYPES: dict[str, TypeRule] = {"GreaterOrEqual": _truths, "LessOrEqual": _truths}
"""Element types of the results of operators whose results are not of the first input's type."""
