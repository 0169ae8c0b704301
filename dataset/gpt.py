"""An architecture row of HW-GPT-Bench → its graph.

A pre-norm GPT decoder as the source describes it: embedding; per block a layer norm, fused QKV
projection, rotary positions, causal attention and output projection with a residual, then a layer
norm and a gated MLP (silu(fc_1 x) · fc_2 x, projected back) with a residual; a final layer norm
and an untied output layer without bias. Heads have 64 dimensions. Rotary positions are not stated
as nodes of their own but as one multiply-add over queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataset.nodes import GraphBuilder
from dippm.graph.model_graph import ModelGraph

HEAD_DIM = 64


def graph_of(architecture: Mapping[str, Any], batch: int | None = None) -> ModelGraph:
    """Return the graph of a row of the architecture table.

    Args:
        architecture: with embed_dim, n_layer, n_head, mlp_ratio, bias, vocab, seq_len.
        batch: sequences; by default the batch that was measured.
    """
    sequences = int(architecture["batch_inferred"] if batch is None else batch)
    length, width = int(architecture["seq_len"]), int(architecture["embed_dim"])
    vocabulary, bias = int(architecture["vocab"]), bool(architecture["bias"])
    builder = GraphBuilder(batch=sequences)
    tokens = builder.input((sequences, length), "int64")
    stream = builder.add(
        "embedding",
        [tokens],
        (sequences, length, width),
        attributes={"rows": vocabulary, "width": width},
        weights=vocabulary * width,
    )
    block = _Block(builder, sequences, length, width, bias)
    layers = zip(architecture["n_head"], architecture["mlp_ratio"], strict=True)
    for n_head, mlp_ratio in layers:
        stream = block.attention(stream, int(n_head))
        stream = block.mlp(stream, int(mlp_ratio) * width)
    normed = block.norm(stream)
    block.dense(normed, width, vocabulary, bias=False)
    return builder.graph()


class _Block:
    def __init__(
        self, builder: GraphBuilder, batch: int, length: int, width: int, bias: bool
    ) -> None:
        self.builder, self.bias = builder, bias
        self.batch, self.length, self.width = batch, length, width

    def attention(self, stream: int, heads: int) -> int:
        add, inner = self.builder.add, heads * HEAD_DIM
        qkv = self.dense(self.norm(stream), self.width, 3 * inner)
        per_head = (self.batch, heads, self.length, HEAD_DIM)
        query, key, value = (
            add("transpose", [add("split", [qkv], self._wide(inner))], per_head) for _ in range(3)
        )
        query = add("multiply_add", [query], per_head)
        key = add("multiply_add", [key], per_head)
        attended = add(
            "attention",
            [query, key, value],
            per_head,
            attributes={
                "heads": heads,
                "query_length": self.length,
                "key_length": self.length,
                "head_dim": HEAD_DIM,
                "value_dim": HEAD_DIM,
            },
            absorbed=("sdpa",),
        )
        merged = add("transpose", [attended], self._wide(inner))
        return self._residual(stream, self.dense(merged, inner, self.width))

    def mlp(self, stream: int, hidden: int) -> int:
        normed = self.norm(stream)
        gate = self.builder.add(
            "silu", [self.dense(normed, self.width, hidden)], self._wide(hidden)
        )
        up = self.dense(normed, self.width, hidden)
        product = self.builder.add("multiply", [gate, up], self._wide(hidden))
        return self._residual(stream, self.dense(product, hidden, self.width))

    def norm(self, stream: int) -> int:
        return self.builder.add(
            "layer_norm",
            [stream],
            self._wide(self.width),
            attributes={"normalized_size": self.width},
            other_parameters=2 * self.width,
        )

    def dense(self, source: int, inner: int, outer: int, bias: bool | None = None) -> int:
        return self.builder.add(
            "dense",
            [source],
            self._wide(outer),
            attributes={"in_features": inner, "out_features": outer},
            weights=inner * outer,
            other_parameters=outer if (self.bias if bias is None else bias) else 0,
        )

    def _residual(self, stream: int, branch: int) -> int:
        return self.builder.add("add", [stream, branch], self._wide(self.width))

    def _wide(self, width: int) -> tuple[int, int, int]:
        return (self.batch, self.length, width)
