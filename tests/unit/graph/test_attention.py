"""R7: attention and norms from their pieces."""

from __future__ import annotations

import pytest

from tests.unit.graph.sketch import BATCH, Sketch, ops

HEADS, LENGTH, WIDTH = 4, 10, 16
QUERY = (BATCH, HEADS, LENGTH, WIDTH)
SCORES = (BATCH, HEADS, LENGTH, LENGTH)
EXPECTED = {
    "heads": HEADS,
    "query_length": LENGTH,
    "key_length": LENGTH,
    "head_dim": WIDTH,
    "value_dim": WIDTH,
}


def transposed(s: Sketch, x: int) -> int:
    shape = (*QUERY[:2], WIDTH, LENGTH)
    return s.call("permute_dims", [x], *shape, axes=(0, 1, 3, 2))


def attend(s: Sketch, *, scale: str = "scores", mask: str = "none"):
    query, key, value = (s.input(*QUERY) for _ in range(3))
    if scale == "query":
        query = s.call("multiply", [query, s.number(0.25)], *QUERY)
    if scale == "both":
        query = s.call("multiply", [query, s.number(0.5)], *QUERY)
        key = s.call("multiply", [key, s.number(0.5)], *QUERY)
    scores = s.call("matmul", [query, transposed(s, key)], *SCORES)
    if scale == "scores":
        scores = s.call("divide", [scores, s.number(4.0)], *SCORES)
    if mask == "bias":
        scores = s.call("add", [scores, s.weight(1, HEADS, LENGTH, LENGTH)], *SCORES)
    if mask == "input":
        scores = s.call("add", [scores, s.input(BATCH, 1, 1, LENGTH)], *SCORES)
    if mask == "windows":
        split = (BATCH, 1, HEADS, LENGTH, LENGTH)
        scores = s.call("reshape", [scores], *split)
        scores = s.call("add", [scores, s.weight(1, 1, LENGTH, LENGTH)], *split)
        scores = s.call("reshape", [scores], *SCORES)
    weights = s.call("nn.softmax", [scores], *SCORES, axis=-1)
    weights = s.call("aten.dropout", [weights], *SCORES, p=0.1)
    return s.call("matmul", [weights, value], *QUERY)


@pytest.mark.parametrize("scale", ["scores", "query", "both", "none"])
@pytest.mark.parametrize("mask", ["none", "bias", "input", "windows"])
def test_every_spelling_is_one_attention(scale: str, mask: str):
    sketch = Sketch()
    graph = sketch.graph(attend(sketch, scale=scale, mask=mask))
    (node,) = graph.nodes
    assert node.op == "attention"
    assert node.attributes == EXPECTED
    assert node.macs == 2 * BATCH * HEADS * LENGTH * LENGTH * WIDTH
    assert node.absorbed.count("batch_matmul") == 2
    assert node.absorbed.count("add") == (mask != "none")


def test_the_fused_operator_is_the_same_node():
    sketch = Sketch()
    operands = [sketch.input(*QUERY) for _ in range(3)]
    fused = sketch.graph(sketch.call("aten.scaled_dot_product_attention", operands, *QUERY))
    pieces = Sketch()
    assert fused.nodes == pieces.graph(attend(pieces)).nodes
    assert fused.nodes[0].kernels == ("sdpa",)


def test_softmax_without_scores_stays():
    sketch = Sketch()
    weights = sketch.call("nn.softmax", [sketch.input(*SCORES)], *SCORES, axis=-1)
    graph = sketch.graph(sketch.call("matmul", [weights, sketch.input(*QUERY)], *QUERY))
    assert ops(graph) == ["softmax", "batch_matmul"]


def normalise(s: Sketch, x: int, *, kind: str, root: str, affine: bool):
    shape, mean_shape = (BATCH, LENGTH, WIDTH), (BATCH, LENGTH, 1)
    if kind == "layer_norm":
        mean = s.call("mean", [x], *mean_shape, axis=(-1,), keepdims=1)
        x = s.call("subtract", [x, mean], *shape)
    square = s.call("power", [x, s.number(2.0)], *shape)
    variance = s.call("mean", [square], *mean_shape, axis=(-1,), keepdims=1)
    variance = s.call("add", [variance, s.number(1e-5)], *mean_shape)
    if root == "sqrt":
        y = s.call("divide", [x, s.call("sqrt", [variance], *mean_shape)], *shape)
    else:
        y = s.call("multiply", [x, s.call("rsqrt", [variance], *mean_shape)], *shape)
    if affine:
        y = s.call("multiply", [y, s.weight(WIDTH)], *shape)
    return y


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("root", ["sqrt", "rsqrt"])
@pytest.mark.parametrize("affine", [True, False])
def test_norms_in_pieces(kind: str, root: str, affine: bool):
    sketch = Sketch()
    x = sketch.input(BATCH, LENGTH, WIDTH)
    graph = sketch.graph(normalise(sketch, x, kind=kind, root=root, affine=affine))
    (node,) = graph.nodes
    assert (node.op, node.attributes["normalized_size"]) == (kind, WIDTH)
    assert node.kernels[-1] == ("multiply" if affine or root == "rsqrt" else "divide")


def test_group_norm_as_an_instance_norm_between_reshapes():
    s = Sketch()
    image = (BATCH, 8, 6, 6)
    y = s.call("reshape", [s.input(*image)], BATCH, 2, 144)
    scales = [s.number(1.0, 2), s.number(0.0, 2)]
    y = s.call("onnx.InstanceNormalization", [y, *scales], BATCH, 2, 144)
    y = s.call("reshape", [y], *image)
    for op in ("multiply", "add"):
        y = s.call(op, [y, s.weight(8, 1, 1)], *image)
    (node,) = s.graph(y).nodes
    assert (node.op, node.attributes) == ("group_norm", {"groups": 2, "normalized_size": 144})
