"""A measured operator row → a graph of that operator.

`graph_of` takes a row of `dataset.measured.sources`. For rows whose work the canonical operators
cannot describe (fused rope, a sliding window, an 8-bit cache) it returns None, and `reason` the
why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd

from dataset.measured.nodes import DTYPE, GraphBuilder
from dippm.model.graph.model_graph import Attribute, ModelGraph

Row = Mapping[str, Any]
Shape = tuple[int, ...]

NEUSIGHT_ELEMENTWISE = {
    "add": ("add", 2),
    "mul": ("multiply", 2),
    "div": ("divide", 2),
    "pow": ("power", 2),
    "addu": ("add", 1),
    "mulu": ("multiply", 1),
    "divu": ("divide", 1),
    "powu": ("power", 1),
    "gelu": ("gelu", 1),
    "relu": ("relu", 1),
    "tanh": ("tanh", 1),
}
FLAGPERF_ELEMENTWISE = {
    "abs": ("abs", 1), "add": ("add", 2), "cos": ("cos", 1), "div": ("divide", 1),
    "eq": ("equal", 2), "exp": ("exp", 1), "ge": ("greater_equal", 2), "gelu": ("gelu", 1),
    "gt": ("greater", 2), "isinf": ("is_inf", 1), "isnan": ("is_nan", 1),
    "le": ("less_equal", 2), "lt": ("less", 2), "mul": ("multiply", 1), "ne": ("not_equal", 2),
    "neg": ("neg", 1), "pow": ("power", 1), "reciprocal": ("reciprocal", 1), "relu": ("relu", 1),
    "rsqrt": ("rsqrt", 1), "rsub": ("subtract", 2), "sigmoid": ("sigmoid", 1),
    "silu": ("silu", 1), "sin": ("sin", 1), "sub": ("subtract", 2), "tanh": ("tanh", 1),
}  # fmt: skip
COMPARISONS = frozenset(
    "equal not_equal greater greater_equal less less_equal is_inf is_nan".split()
)
FLAGPERF_REDUCTIONS = {
    "amax": "reduce_max", "argmax": "argmax", "max": "reduce_max", "mean": "reduce_mean",
    "min": "reduce_min", "prod": "reduce_prod", "sum": "reduce_sum",
}  # fmt: skip


LAYER_COLUMNS = {
    "neusight_ops": ("N", "K", "H", "in_channels", "out_channels", "kernel_size"),
    "aiconfigurator": ("n", "k", "num_heads", "num_kv_heads", "head_dim", "window_size"),
    "vidur": ("n_embd", "n_head", "n_kv_head", "n_expanded_embd", "vocab_size", "n_q_head"),
    "flagperf": ("input_shapes",),
    "deepbench": ("m", "k", "C", "K", "S", "R"),
}
"""Columns that identify a layer; the rest of a shape is batch or length."""


def layer_keys(table: pd.DataFrame) -> pd.Series[str]:
    """Return the grouping key of operator rows: the architecture of a layer.

    Rows of one layer at other batches, lengths, precisions, GPUs and software share a key, so
    that a split by it never tests a layer seen in training.

    Args:
        table: rows of one source of operators.

    Raises:
        ValueError: if the rows are of several sources.
    """
    (source, *others) = table["source"].unique()
    if others:
        raise ValueError(f"rows of several sources: {source}, {', '.join(others)}")
    key = table["source"] + " " + table["operator"]
    for column in LAYER_COLUMNS[source]:
        key = key + " " + table[column].astype("string").fillna("-")
    return key


def graph_of(row: Row) -> ModelGraph | None:
    """Return the graph of a row; None if the canonical operators cannot describe it.

    Args:
        row: row with "source", "operator" and the shape columns of its source.

    Raises:
        KeyError: if the source has no operator rows.
    """
    return _MAKERS[row["source"]](row)


def elementwise(op: str, shape: Shape, operands: int = 1) -> ModelGraph:
    """Return one element-wise operator over tensors of one shape."""
    dtype = "bool" if op in COMPARISONS else DTYPE
    return _single(op, [shape] * operands, shape, dtype=dtype)


def dense(rows: Shape, in_features: int, out_features: int, *, bias: bool = False) -> ModelGraph:
    """Return one dense layer over `rows` vectors."""
    return _single(
        "dense",
        [(*rows, in_features)],
        (*rows, out_features),
        attributes={"in_features": in_features, "out_features": out_features},
        weights=in_features * out_features,
        other_parameters=out_features if bias else 0,
    )


def batch_matmul(batch: int, m: int, *, n: int, k: int) -> ModelGraph:
    """Return (batch, m, k) x (batch, k, n)."""
    attributes: dict[str, Attribute] = {"m": m, "n": n, "k": k}
    shapes = [(batch, m, k), (batch, k, n)]
    return _single("batch_matmul", shapes, (batch, m, n), attributes=attributes)


def attention(
    batch: int,
    heads: int,
    query_length: int,
    *,
    key_length: int,
    head_dim: int,
    kv_heads: int,
    causal: bool = False,
) -> ModelGraph:
    """Return one fused attention, with the MACs of the full, unmasked product."""
    query = (batch, heads, query_length, head_dim)
    key = (batch, kv_heads, key_length, head_dim)
    return _single(
        "attention",
        [query, key, key],
        query,
        attributes={
            "heads": heads,
            "query_length": query_length,
            "key_length": key_length,
            "head_dim": head_dim,
            "value_dim": head_dim,
            **({"causal": 1} if causal else {}),
        },
        absorbed=("sdpa",),
    )


def _single(
    op: str, in_shapes: Sequence[Shape], out: Shape, *, batch: int | None = None, **node: Any
) -> ModelGraph:
    builder = GraphBuilder(batch=batch if batch is not None else in_shapes[0][0])
    sources = [builder.input(shape) for shape in in_shapes]
    builder.add(op, sources, out, **node)
    return builder.graph()


def _neusight(row: Row) -> ModelGraph | None:
    op = row["operator"]
    if op == "bmm":
        b, m, n, k = _integers(row, "B", "M", "N", "K")
        return batch_matmul(b, m, n=k, k=n)
    if op == "linear":
        b, m, n, k = _integers(row, "B", "M", "N", "K")
        return dense((b, m), n, k, bias=True)
    if op == "conv":
        return _square_convolution(row)
    shape = _integers(row, "B", "H")
    if op == "softmax":
        return _single("softmax", [shape], shape, attributes={"axis": 1})
    if op == "ln":
        return _norm("layer_norm", shape)
    name, operands = NEUSIGHT_ELEMENTWISE[op]
    return elementwise(name, shape, operands)


def _square_convolution(row: Row) -> ModelGraph:
    shape = _integers(row, "B", "in_channels", "input_size", "input_size")
    kernel, stride, padding = _integers(row, "kernel_size", "stride", "padding")
    filters = int(row["out_channels"])
    return convolution(shape, filters, (kernel,) * 2, (stride,) * 2, (padding,) * 2)


def convolution(
    image: Shape, filters: int, kernel: Shape, strides: Shape, padding: Shape
) -> ModelGraph:
    """Return one convolution without bias of (batch, channels, height, width).

    Args:
        image: shape of its input.
        filters: channels of its output.
        kernel: height and width of the kernel.
        strides: strides along height and width.
        padding: padding on both sides of height and width.
    """
    batch, channels, *sizes = image
    along = zip(sizes, kernel, strides, padding, strict=True)
    out = tuple((size + 2 * pad - width) // step + 1 for size, width, step, pad in along)
    return _single(
        "conv2d",
        [image],
        (batch, filters, *out),
        attributes={
            "kernel": kernel,
            "strides": strides,
            "padding": padding * 2,
            "dilation": (1, 1),
            "groups": 1,
            "in_channels": channels,
            "out_channels": filters,
        },
        weights=channels * filters * kernel[0] * kernel[1],
    )


def _norm(op: str, shape: Shape) -> ModelGraph:
    width = shape[-1]
    attributes: dict[str, Attribute] = {"normalized_size": width}
    parameters = width if op == "rms_norm" else 2 * width
    return _single(op, [shape], shape, attributes=attributes, other_parameters=parameters)


def _aiconfigurator(row: Row) -> ModelGraph | None:
    op = row["operator"]
    if op == "gemm":
        m, n, k = _integers(row, "m", "n", "k")
        return dense((m,), k, n)
    batch, length, heads, head_dim = _integers(row, "batch", "isl", "num_heads", "head_dim")
    key_length, kv_heads = length, heads
    if op != "encoder_attention":
        kv_heads = int(row["num_kv_heads"]) or heads
        key_length = int(row["step"]) + length
        if _beyond_attention(row, key_length):
            return None
    return attention(
        batch,
        heads,
        length,
        key_length=key_length,
        head_dim=head_dim,
        kv_heads=kv_heads,
        causal=op == "context_attention",
    )


def _beyond_attention(row: Row, key_length: int) -> bool:
    """Return whether keys are skipped, or cached in a precision other than the product's.

    The effect of a sliding window depends on the library: some read all keys and mask them.
    """
    return 0 < int(row["window_size"]) < key_length or row["kv_cache_dtype"] == "fp8"


def _vidur(row: Row) -> ModelGraph | None:
    op, tp = row["operator"], int(row["tp"])
    if op.startswith("attn_") and op in ("attn_prefill", "attn_decode"):
        return _vidur_attention(row, tp)
    if op in ("attn_rope", "attn_output_reshape", "attn_input_reshape"):
        return None
    tokens, width, heads, kv_heads = _integers(row, "num_tokens", "n_embd", "n_head", "n_kv_head")
    gated = bool(row["use_gated_mlp"])
    head_dim, hidden = width // heads, int(row["n_expanded_embd"]) // tp
    if op == "attn_pre_proj":
        return dense((tokens,), width, (heads + 2 * kv_heads) * head_dim // tp)
    if op == "attn_post_proj":
        return dense((tokens,), heads * head_dim // tp, width)
    if op == "mlp_up_proj":
        return dense((tokens,), width, hidden * (2 if gated else 1))
    if op == "mlp_down_proj":
        return dense((tokens,), hidden, width)
    if op == "mlp_act":
        if gated:
            return _single("glu", [(tokens, 2 * hidden)], (tokens, hidden))
        return elementwise("gelu", (tokens, hidden))
    if op == "add":
        return elementwise("add", (tokens, width), 2)
    if op == "emb":
        return _embedding(tokens, int(row["vocab_size"]) // tp, width)
    return _norm("rms_norm" if gated else "layer_norm", (tokens, width))


def _vidur_attention(row: Row, tp: int) -> ModelGraph:
    batch, heads, kv_heads, width = _integers(row, "batch", "n_q_head", "n_kv_head", "n_embd")
    new = int(row["prefill_chunk_size"]) if row["operator"] == "attn_prefill" else 1
    return attention(
        batch,
        heads // tp,
        new,
        key_length=int(row["kv_cache_size"]) + new,
        head_dim=width // heads,
        kv_heads=kv_heads // tp,
        causal=True,
    )


def _embedding(tokens: int, rows: int, width: int) -> ModelGraph:
    return _single(
        "embedding",
        [(tokens,)],
        (tokens, width),
        attributes={"rows": rows, "width": width},
        weights=rows * width,
    )


def _flagperf(row: Row) -> ModelGraph | None:
    op, shapes = row["operator"], _flagperf_shapes(row["input_shapes"])
    if row["phase"] != "inference" or not shapes:
        return None
    first = shapes[0]
    if op in FLAGPERF_ELEMENTWISE:
        name, operands = FLAGPERF_ELEMENTWISE[op]
        return elementwise(name, first, operands)
    if op in FLAGPERF_REDUCTIONS:
        axes = tuple(range(len(first)))
        return _single(FLAGPERF_REDUCTIONS[op], [first], (1,), attributes={"axes": axes})
    if op in ("mm", "linear"):
        return dense(first[:-1], first[-1], shapes[1][-1])
    if op == "bmm":
        return batch_matmul(first[0], first[1], n=shapes[1][2], k=first[2])
    return None


def _deepbench(row: Row) -> ModelGraph | None:
    if row["operator"] == "gemm":
        m, n, k = _integers(row, "m", "n", "k")
        return dense((n,), k, m)
    if row["operator"] != "conv2d":
        return None
    kernel, strides, padding = (
        _integers(row, *names)
        for names in (("R", "S"), ("stride_h", "stride_w"), ("pad_h", "pad_w"))
    )
    return convolution(_integers(row, "N", "C", "H", "W"), int(row["K"]), kernel, strides, padding)


@lru_cache(maxsize=256)
def _flagperf_shapes(text: str) -> list[Shape]:
    parts = [part[part.index("[") + 1 : part.index("]")] for part in text.split(";")]
    return [tuple(int(size) for size in part.split(",")) for part in parts]


def _integers(row: Row, *names: str) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in names)


_MAKERS: dict[str, Callable[[Row], ModelGraph | None]] = {
    "neusight_ops": _neusight,
    "aiconfigurator": _aiconfigurator,
    "vidur": _vidur,
    "flagperf": _flagperf,
    "deepbench": _deepbench,
}
