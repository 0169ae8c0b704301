"""Fused operators traced as standard ones, for rewrites that need shapes.

Runtimes write them: attention with a cache or packed inputs, products with scales, embeddings with
a norm. Rewrites that need the node alone are in `contributed`. To add one: a function that applies
standard operators, and a line in `TRACERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from dippm.model.relax.onnx.tracing import Tensor, Tracing, UnsupportedError

Attributes = Mapping[str, Any]
CONTRIBUTED = "com.microsoft"


class Fused:
    """One fused node while it is rewritten as standard operators."""

    def __init__(self, tracer: Tracing, node: onnx.NodeProto, attributes: Attributes) -> None:
        self.tracer, self.node, self.attributes = tracer, node, attributes
        self._count = 0

    def input(self, position: int) -> Tensor | None:
        """Return an argument; None if it is absent."""
        names = self.node.input
        name = names[position] if position < len(names) else ""
        return self.tracer.read(name, self.node.name or self.node.op_type)

    def need(self, position: int) -> Tensor:
        """Return a required argument."""
        return self.tracer.need(self.node, position)

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer attribute."""
        return int(self.attributes.get(name, default))

    def apply(self, operator: str, *inputs: Tensor | None, **attributes: Any) -> Tensor:
        """Apply a standard operator with one result."""
        self._count += 1
        label = f"{self.node.name or self.node.output[0]}/{operator}{self._count}"
        return self.tracer.apply(operator, inputs, label, **attributes)

    def numbers(self, values: Sequence[int]) -> Tensor:
        """Return a constant of integers."""
        data = np.asarray(values, np.int64)
        return Tensor("numbers", data.shape, TensorProto.INT64, data)

    def reshape(self, data: Tensor, *sizes: int) -> Tensor:
        """Return data with other sizes."""
        if data.shape == sizes:
            return data
        return self.apply("Reshape", data, self.numbers(sizes))

    def cut(self, data: Tensor, start: int, end: int) -> Tensor:
        """Return a slice of the last dimension."""
        bounds = (self.numbers([n]) for n in (start, end, len(data.shape) - 1))
        return self.apply("Slice", data, *bounds)

    def heads(self, data: Tensor, count: int) -> Tensor:
        """Return (batch, steps, width) as (batch, heads, steps, width of a head)."""
        if len(data.shape) == 4:
            return data
        batch, steps, width = data.shape
        split = self.reshape(data, batch, steps, count, width // count)
        return self.apply("Transpose", split, perm=[0, 2, 1, 3])

    def write(self, *results: Tensor | None) -> None:
        """Write these tensors as the results of the fused node.

        Raises:
            UnsupportedError: if another result is read.
        """
        for i, name in enumerate(self.node.output):
            result = results[i] if i < len(results) else None
            if name and result is not None:
                self.tracer.write(name, result)
            elif name and self.tracer.is_read(name):
                raise UnsupportedError(self.node, f"its result {name!r} has no standard form")

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        past: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return attention over heads as (batch, steps, width), and keys and values with the past.

        Arguments are (batch, heads, steps, width of a head).
        """
        if past[0] is not None and past[1] is not None:
            key = self.apply("Concat", past[0], key, axis=2)
            value = self.apply("Concat", past[1], value, axis=2)
        found = self.apply("Attention", query, key, value)
        return self.merge_heads(found), key, value

    def merge_heads(self, data: Tensor) -> Tensor:
        """Return heads concatenated in the last dimension."""
        batch, heads, steps, width = data.shape
        turned = self.apply("Transpose", data, perm=[0, 2, 1, 3])
        return self.reshape(turned, batch, steps, heads * width)


def _attention(fused: Fused) -> None:
    """Attention of com.microsoft: projection, split, an optional past, attention."""
    data, weight, bias = fused.need(0), fused.need(1), fused.input(2)
    projected = fused.apply("MatMul", data, weight)
    if bias is not None:
        projected = fused.apply("Add", projected, bias)
    _attend_packed(fused, projected, fused.input(4))


def _attend_packed(fused: Fused, packed: Tensor, past: Tensor | None) -> None:
    heads = max(fused.integer("num_heads", 1), 1)
    sizes = [int(n) for n in fused.attributes.get("qkv_hidden_sizes") or []]
    sizes = sizes or [packed.shape[-1] // 3] * 3
    ends = np.cumsum(sizes).tolist()
    starts = [0, *ends[:2]]
    parts = [fused.cut(packed, start, end) for start, end in zip(starts, ends, strict=True)]
    if past is None and not fused.tracer.is_read(_output(fused.node, 1)) and len(set(sizes)) == 1:
        fused.write(fused.apply("Attention", *parts, q_num_heads=heads, kv_num_heads=heads), None)
        return
    query, key, value = (fused.heads(part, heads) for part in parts)
    halves: tuple[Tensor | None, Tensor | None] = (None, None)
    if past is not None:
        rows = [
            fused.apply("Slice", past, *map(fused.numbers, ([i], [i + 1], [0]))) for i in (0, 1)
        ]
        halves = (fused.reshape(rows[0], *past.shape[1:]), fused.reshape(rows[1], *past.shape[1:]))
    result, key, value = fused.attend(query, key, value, halves)
    present = None
    if fused.tracer.is_read(_output(fused.node, 1)):
        lifted = [fused.reshape(t, 1, *t.shape) for t in (key, value)]
        present = fused.apply("Concat", *lifted, axis=0)
    fused.write(result, present)


def _multi_head_attention(fused: Fused) -> None:
    """Separate query, key and value, or packed in 5 dimensions; optional bias and past."""
    query, heads = fused.need(0), max(fused.integer("num_heads", 1), 1)
    key, value, bias = fused.input(1), fused.input(2), fused.input(3)
    if key is None or value is None or len(key.shape) == 5:
        raise UnsupportedError(fused.node, "packed queries, keys and values have no standard form")
    if bias is not None:
        width = query.shape[-1]
        ends = [width, 2 * width, bias.shape[-1]]
        query, key, value = (
            fused.apply("Add", t, fused.cut(bias, start, end)) if len(t.shape) == 3 else t
            for t, start, end in zip((query, key, value), [0, *ends[:2]], ends, strict=True)
        )
    past = (fused.input(6), fused.input(7))
    is_plain = past[0] is None and not any(
        fused.tracer.is_read(name) for name in fused.node.output[1:]
    )
    if is_plain and len(key.shape) == 3:
        fused.write(
            fused.apply("Attention", query, key, value, q_num_heads=heads, kv_num_heads=heads)
        )
        return
    parts = [fused.heads(t, heads) for t in (query, key, value)]
    fused.write(*fused.attend(parts[0], parts[1], parts[2], past))


def _grouped_attention(fused: Fused) -> None:
    """GroupQueryAttention: fewer heads of keys than of queries, and a cache."""
    heads = max(fused.integer("num_heads", 1), 1)
    key_heads = max(fused.integer("kv_num_heads", heads), 1)
    query, key, value = fused.need(0), fused.input(1), fused.input(2)
    if key is None or value is None:
        size = query.shape[-1] // (heads + 2 * key_heads)
        ends = np.cumsum([heads * size, key_heads * size, key_heads * size]).tolist()
        packed = query
        query, key, value = (
            fused.cut(packed, start, end) for start, end in zip([0, *ends], ends, strict=False)
        )
    past = (fused.input(3), fused.input(4))
    result, key, value = fused.attend(
        fused.heads(query, heads), fused.heads(key, key_heads), fused.heads(value, key_heads), past
    )
    fused.write(result, key, value)


def _standard_attention(fused: Fused) -> None:
    """Attention of opset 23: with fewer heads of keys, or a cache."""
    query, key, value = fused.need(0), fused.need(1), fused.need(2)
    heads = max(fused.integer("q_num_heads", 1), 1)
    key_heads = max(fused.integer("kv_num_heads", heads), 1)
    if len(query.shape) == 3 and not (fused.attributes.get("q_num_heads") or key.shape == ()):
        raise UnsupportedError(fused.node, "it does not say how many heads it has")
    past = (fused.input(4), fused.input(5))
    parts = (fused.heads(query, heads), fused.heads(key, key_heads), fused.heads(value, key_heads))
    if len(query.shape) == 4:
        if past[0] is not None and past[1] is not None:
            parts = (
                parts[0],
                fused.apply("Concat", past[0], parts[1], axis=2),
                fused.apply("Concat", past[1], parts[2], axis=2),
            )
        fused.write(fused.apply("Attention", *parts), parts[1], parts[2])
        return
    fused.write(*fused.attend(*parts, past))


def _is_plain_attention(tracer: Tracing, node: onnx.NodeProto, attributes: Attributes) -> bool:
    """Return whether a single standard operator describes the node completely."""
    same = attributes.get("q_num_heads", 0) == attributes.get("kv_num_heads", 0)
    cached = any(node.input[4:6]) or any(tracer.is_read(name) for name in node.output[1:])
    return same and not cached


def _matmul_with_scales(fused: Fused) -> None:
    """MatMulIntegerToFloat: an integer product, then both scales and a bias."""
    a, b, a_scale, b_scale = (fused.need(i) for i in range(4))
    _scaled_product(
        fused, (a, b), (a_scale, b_scale), (fused.input(4), fused.input(5)), fused.input(6)
    )


def _scaled_product(
    fused: Fused,
    operands: tuple[Tensor, Tensor],
    scales: tuple[Tensor, Tensor],
    zeros: tuple[Tensor | None, Tensor | None],
    bias: Tensor | None,
) -> None:
    product = fused.apply("MatMulInteger", *operands, *zeros)
    floats = fused.apply("Cast", product, to=scales[0].element_type)
    scale = fused.apply("Mul", *scales)
    result = fused.apply("Mul", floats, scale)
    fused.write(result if bias is None else fused.apply("Add", result, bias))


def _dynamic_matmul(fused: Fused) -> None:
    """DynamicQuantizeMatMul: the scale of the left side comes from its own values."""
    a, b, b_scale = fused.need(0), fused.need(1), fused.need(2)
    numbers, scale, zero = fused.tracer.apply_all(
        "DynamicQuantizeLinear", [a], f"{fused.node.output[0]}/quantized", 3
    )
    _scaled_product(fused, (numbers, b), (scale, b_scale), (zero, fused.input(3)), fused.input(4))


def _quantized_attention(fused: Fused) -> None:
    data, weight, bias = fused.need(0), fused.need(1), fused.need(2)
    scale, weight_scale = fused.need(3), fused.need(4)
    product = fused.apply("MatMulInteger", data, weight, fused.input(6), fused.input(7))
    floats = fused.apply("Cast", product, to=scale.element_type)
    scaled = fused.apply("Mul", floats, fused.apply("Mul", scale, weight_scale))
    _attend_packed(fused, fused.apply("Add", scaled, bias), fused.input(8))


def _matmul_few_bits(fused: Fused) -> None:
    """MatMulNBits: weights of 2 to 8 bits in blocks, widened for a float product."""
    data, packed, scales = fused.need(0), fused.need(1), fused.need(2)
    rows, columns = fused.integer("K"), fused.integer("N")
    if rows < 1 or columns < 1 or data.shape[-1:] != (rows,):
        raise UnsupportedError(fused.node, f"K={rows}, N={columns} do not fit {data.shape}")
    wide = fused.apply(
        "DequantizeLinear",
        packed,
        scales,
        domain=CONTRIBUTED,
        K=rows,
        N=columns,
        element_type=data.element_type,
    )
    result = fused.apply("MatMul", data, wide)
    bias = fused.input(5)
    fused.write(result if bias is None else fused.apply("Add", result, bias))
    fused.tracer.note(
        f"weights of {fused.integer('bits', 4)} bits ({fused.node.name or fused.node.op_type!r} "
        "and others) are priced as stored, their products at the precision of the activations"
    )


def _embeddings(fused: Fused) -> None:
    """EmbedLayerNormalization: a norm over the sum of word, position and segment embeddings."""
    words, segments = fused.need(0), fused.input(1)
    total = fused.apply("Gather", fused.need(2), words, axis=0)
    steps = words.shape[-1]
    ends = (fused.numbers([n]) for n in (0, steps, 0))
    total = fused.apply("Add", total, fused.apply("Slice", fused.need(3), *ends))
    table = fused.input(4)
    if segments is not None and table is not None:
        total = fused.apply("Add", total, fused.apply("Gather", table, segments, axis=0))
    epsilon = float(fused.attributes.get("epsilon", 1e-12))
    norm = fused.apply(
        "LayerNormalization", total, fused.need(5), fused.need(6), axis=-1, epsilon=epsilon
    )
    fused.write(norm, None, total)


def _grouped_norm(fused: Fused) -> None:
    """GroupNorm of com.microsoft: channels last, optionally followed by SiLU."""
    data = fused.need(0)
    rank, is_last = len(data.shape), fused.integer("channels_last", 1)
    first = [0, rank - 1, *range(1, rank - 1)]
    turned = fused.apply("Transpose", data, perm=first) if is_last else data
    result = fused.apply(
        "GroupNormalization",
        turned,
        fused.need(1),
        fused.need(2),
        num_groups=fused.integer("groups", 1),
    )
    if fused.integer("activation"):
        result = fused.apply("Mul", result, fused.apply("Sigmoid", result))
    back = [0, *range(2, rank), 1]
    fused.write(fused.apply("Transpose", result, perm=back) if is_last else result)


def _output(node: onnx.NodeProto, position: int) -> str:
    return str(node.output[position]) if position < len(node.output) else ""


_FUSED: dict[str, Callable[[Fused], None]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _grouped_attention,
    "QAttention": _quantized_attention,
    "MatMulIntegerToFloat": _matmul_with_scales,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulNBits": _matmul_few_bits,
    "EmbedLayerNormalization": _embeddings,
    "GroupNorm": _grouped_norm,
}
"""Function by operator name in the domain com.microsoft."""


def write_fused(tracer: Tracing, node: onnx.NodeProto, attributes: Attributes) -> bool:
    """Trace a fused operator as standard ones; return whether it is known."""
    if node.domain == CONTRIBUTED and node.op_type in _FUSED:
        _FUSED[node.op_type](Fused(tracer, node, attributes))
        return True
    is_attention = node.domain != CONTRIBUTED and node.op_type == "Attention"
    if is_attention and not _is_plain_attention(tracer, node, attributes):
        _standard_attention(Fused(tracer, node, attributes))
        return True
    return False
