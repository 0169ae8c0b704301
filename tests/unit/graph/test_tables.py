"""Layers on parameters alone: what eager execution runs on every pass is counted."""

from __future__ import annotations

from tests.unit.graph.sketch import BATCH, Sketch, ops


def test_a_table_through_an_mlp_is_counted_once_and_not_per_sample() -> None:
    """Relative positions through two layers, as Swin V2 biases its attention."""
    s = Sketch()
    x, table = s.input(BATCH, 2, 16), s.weight(49, 2)
    y = s.call("matmul", [table, s.weight(2, 512)], 49, 512)
    y = s.call("nn.relu", [y], 49, 512)
    y = s.call("matmul", [y, s.weight(512, 2)], 49, 2)
    y = s.call("take", [y, s.weight(16, dtype="int64")], 16, 2, axis=0)
    y = s.call("permute_dims", [y], 2, 16, axes=(1, 0))
    graph = s.graph(s.call("add", [x, y], BATCH, 2, 16))
    assert ops(graph) == ["dense", "relu", "dense", "embedding", "transpose", "add"]
    assert graph.edges == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
    assert graph.at_batch(64).macs == 49 * (2 * 512 + 512 * 2)
    assert [node.param_bytes for node in graph.nodes] == [4096, 0, 4096, 0, 0, 0]


def test_learned_queries_repeated_for_the_batch_scale_with_it() -> None:
    """What leads to the layer is counted too, what only prepares it as a view is free."""
    s = Sketch()
    x, queries = s.input(BATCH, 5, 8), s.weight(1, 10, 8)
    q = s.call("broadcast_to", [queries], BATCH, 10, 8)
    q = s.call("nn.layer_norm", [q, s.weight(8), s.weight(8)], BATCH, 10, 8, axes=(-1,))
    q = s.call("matmul", [q, s.weight(8, 8)], BATCH, 10, 8)
    keys = s.call("permute_dims", [x], BATCH, 8, 5, axes=(0, 2, 1))
    graph = s.graph(s.call("matmul", [q, keys], BATCH, 10, 5)).at_batch(3)
    assert ops(graph) == ["layer_norm", "dense", "transpose", "batch_matmul"]
    assert graph.macs == 3 * (10 * 8 * 8 + 10 * 5 * 8)
    assert graph.nodes[0].in_shapes == ((3, 10, 8),)


def test_a_table_through_an_einsum_is_counted() -> None:
    """Relative positions through a layer that is spelled as an equation, as XLNet has them."""
    s = Sketch()
    x, table, weight = s.input(BATCH, 4, 6, 2), s.weight(10, 8), s.weight(8, 4, 2)
    keys = s.call("aten.einsum", [table, weight], 10, 4, 2, equation="ih,hnd->ind")
    scores = s.call("aten.einsum", [x, keys], BATCH, 4, 6, 10, equation="bnid,jnd->bnij")
    graph = s.graph(scores).at_batch(2)
    assert graph.macs == 10 * 8 * 8 + 2 * 4 * 6 * 10 * 2
    (layer,) = (node for node in graph.nodes if node.param_bytes)
    assert (layer.op, layer.macs, layer.param_bytes) == ("dense", 10 * 8 * 8, 4 * 8 * 8)


def test_an_equation_without_a_sum_makes_a_table() -> None:
    s = Sketch()
    x, rates, steps = s.input(BATCH, 7, 4), s.weight(4), s.weight(7)
    angles = s.call("aten.einsum", [steps, rates], 7, 4, equation="i,j->ij")
    graph = s.graph(s.call("multiply", [x, s.call("cos", [angles], 7, 4)], BATCH, 7, 4))
    assert ops(graph) == ["multiply"]


def test_a_rotary_table_made_in_forward_is_counted() -> None:
    s = Sketch()
    x, rates, steps = s.input(BATCH, 7, 4), s.weight(1, 4, 1), s.weight(1, 1, 7)
    angles = s.call("matmul", [rates, steps], 1, 4, 7)
    angles = s.call("permute_dims", [angles], 1, 7, 4, axes=(0, 2, 1))
    graph = s.graph(s.call("multiply", [x, s.call("cos", [angles], 1, 7, 4)], BATCH, 7, 4))
    assert sorted(ops(graph)) == ["batch_matmul", "cos", "multiply", "transpose"]
    assert graph.macs == 4 * 7


def test_a_product_that_makes_a_weight_stands_beside_and_the_weight_stays_one() -> None:
    """A merged adapter: W + B·A is computed on every pass, the layer is still a dense one."""
    s = Sketch()
    x, weight = s.input(BATCH, 16), s.weight(16, 32)
    update = s.call("matmul", [s.weight(16, 2), s.weight(2, 32)], 16, 32)
    merged = s.call("add", [weight, update], 16, 32)
    graph = s.graph(s.call("matmul", [x, merged], BATCH, 32)).at_batch(1)
    assert ops(graph) == ["dense", "dense"]
    assert graph.macs == 16 * 2 * 32 + 16 * 32
    assert graph.edges == ()


def test_what_multiplies_nothing_is_still_no_node() -> None:
    s = Sketch()
    x, weight = s.input(BATCH, 3, 8, 8), s.weight(4, 3, 3, 3)
    centred = s.call("subtract", [weight, s.call("mean", [weight], 4, 1, 1, 1)], 4, 3, 3, 3)
    graph = s.graph(s.conv(x, centred, BATCH, 4, 8, 8))
    assert ops(graph) == ["conv2d"]
    assert graph.nodes[0].kernels == ("reduce_mean", "subtract", "conv2d")
