"""R1, R8, R9, and what a graph promises: true edges, stable order, any batch, nothing hidden."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from dippm.errors import ConditionsError
from dippm.model.graph import GRAPH_VERSION, build
from dippm.model.graph.liveness import peak, peak_activation_bytes
from dippm.model.graph.operators import OPERATORS
from dippm.model.graph.strides import view_strides
from tests.unit.graph.sketch import BATCH, Sketch, ops


def residual(*, swapped: bool = False) -> Sketch:
    s = Sketch()
    x = s.input(BATCH, 8)
    deep = s.call("nn.relu", [s.call("matmul", [x, s.weight(8, 8)], BATCH, 8)], BATCH, 8)
    near = s.call("tanh", [x], BATCH, 8)
    pair = [near, deep] if swapped else [deep, near]
    s.out = s.call("add", pair, BATCH, 8)  # type: ignore[attr-defined]
    return s


def test_edges_are_data_flow():
    s = residual()
    graph = s.graph(s.out)
    assert ops(graph) == ["dense", "relu", "tanh", "add"]
    assert graph.edges == ((0, 1), (1, 3), (2, 3))
    assert graph.output_nodes == (3,)
    assert graph.version == GRAPH_VERSION


def test_the_order_of_a_sum_does_not_change_the_graph():
    a, b = residual(), residual(swapped=True)
    assert a.graph(a.out) == b.graph(b.out)


def test_what_depends_on_parameters_only_is_no_node_but_is_remembered():
    s = Sketch()
    x, table, index = s.input(BATCH, 4, 4), s.weight(49, 2), s.weight(16, dtype="int64")
    bias = s.call("aten.index", [table, index], 16, 2)
    bias = s.call("reshape", [s.call("permute_dims", [bias], 2, 16, axes=(1, 0))], 2, 4, 4)
    graph = s.graph(s.call("add", [x, bias], BATCH, 4, 4))
    assert ops(graph) == ["add"]
    assert graph.nodes[0].kernels == ("gather", "add")
    assert graph.nodes[0].param_bytes == 4 * 49 * 2


def test_equal_views_and_dead_code_go():
    s = Sketch()
    x = s.input(BATCH, 8)
    s.call("exp", [x], BATCH, 8)
    once, twice = (s.call("reshape", [x], BATCH, 4, 2) for _ in range(2))
    graph = s.graph(s.call("subtract", [once, twice], BATCH, 4, 2))
    assert ops(graph) == ["reshape", "subtract"]
    assert graph.edges == ((0, 1),)


def test_equal_products_are_launched_twice():
    s = Sketch()
    x, shared = s.input(BATCH, 8), s.weight(8, 8)
    once, twice = (s.call("matmul", [x, shared], BATCH, 8) for _ in range(2))
    assert ops(s.graph(s.call("subtract", [once, twice], BATCH, 8))) == [
        "dense",
        "dense",
        "subtract",
    ]


def test_an_unknown_operator_stays_and_is_counted():
    s = Sketch()
    y = s.call("onnx.Frobnicate", [s.input(BATCH, 8)], BATCH, 8)
    graph = s.graph(s.call("nn.relu", [y], BATCH, 8))
    assert ops(graph) == ["onnx.Frobnicate", "relu"]
    assert graph.unknown_ops == {"onnx.Frobnicate": 1}


def test_a_tied_parameter_counts_once_and_an_unread_one_not_at_all():
    s = Sketch()
    x, weight, _ = s.input(BATCH, 8), s.weight(8, 8), s.weight(100, 100)
    y = s.call("matmul", [x, weight], BATCH, 8)
    y = s.call("matmul", [y, weight], BATCH, 8)
    graph = s.graph(y)
    assert graph.param_bytes == 4 * 64
    assert [node.param_bytes for node in graph.nodes] == [256, 256]


def test_at_batch_is_what_a_conversion_at_that_batch_gives():
    def model(batch: int):
        s = Sketch(batch)
        x = s.input(batch, 3, 16, 16)
        y = s.conv(x, s.weight(8, 3, 3, 3), batch, 8, 16, 16)
        y = s.call("reshape", [y], batch * 16, 128)
        return s.graph(s.call("matmul", [y, s.weight(128, 5)], batch * 16, 5))

    assert model(BATCH).at_batch(7) == model(7)
    assert model(BATCH).at_batch(1).at_batch(1).macs * 7 == model(7).macs


def test_a_fixed_batch_refuses_another():
    s = Sketch(4)
    raw = s.raw(s.call("nn.relu", [s.input(4, 8)], 4, 8), symbolic=False)
    graph = build(raw)
    assert graph.at_batch(4) is graph
    with pytest.raises(ConditionsError, match="batch 4"):
        graph.at_batch(8)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_is_positive(batch: int):
    s = residual()
    with pytest.raises(ConditionsError):
        s.graph(s.out).at_batch(batch)


def lstm(layers: int, name: str = "aten.lstm"):
    s = Sketch()
    x = s.input(BATCH, 12, 16)
    weights = []
    for layer in range(layers):
        weights += [s.weight(128, 32 if layer else 16), s.weight(128, 32)]
    shapes = [(BATCH, 12, 32), (layers, BATCH, 32), (layers, BATCH, 32)]
    attributes = {"num_layers": layers, "batch_first": 1, "bidirectional": 0}
    y = s.calls(name, [x, *weights], shapes, **attributes)[0]
    return s.graph(y).at_batch(1)


def test_stacked_recurrent_layers_are_one_node_each():
    graph = lstm(2)
    assert ops(graph) == ["lstm", "lstm"]
    assert graph.macs == 12 * 4 * 32 * (16 + 32 + 32 + 32)
    assert [n.attributes["input_size"] for n in graph.nodes] == [16, 32]
    assert {n.attributes["steps"] for n in graph.nodes} == {12}
    assert sum(n.param_bytes for n in graph.nodes) == 4 * 128 * (16 + 32 + 32 + 32)


def test_two_directions_are_one_node():
    s = Sketch()
    x, sizes = s.input(12, BATCH, 16), {"hidden_size": 32, "steps": 12, "layers": 1}
    shape = (12, BATCH, 32)
    ahead = s.call("tf.LSTM", [x, s.weight(16, 128), s.weight(32, 128)], *shape, **sizes)
    back = s.call("flip", [x], 12, BATCH, 16, axis=0)
    back = s.call("tf.LSTM", [back, s.weight(16, 128), s.weight(32, 128)], *shape, **sizes)
    back = s.call("flip", [back], *shape, axis=0)
    graph = s.graph(s.call("concat", [ahead, back], 12, BATCH, 64, axis=-1)).at_batch(1)
    assert ops(graph) == ["lstm"]
    assert graph.nodes[0].attributes["directions"] == 2
    assert graph.macs == 2 * 12 * 4 * 32 * (16 + 32)


def test_graphs_cross_processes_and_reach_notebooks():
    s = residual()
    graph = s.graph(s.out)
    assert pickle.loads(pickle.dumps(graph)) == graph
    drawn = graph.to_networkx()
    assert set(drawn.edges) == set(graph.edges)
    assert drawn.nodes[0]["op"] == "dense"


def test_peak_memory_follows_lifetimes():
    s = Sketch()
    x = s.input(BATCH, 10)
    y = x
    for _ in range(5):
        y = s.call("tanh", [y], BATCH, 10)
    graph = s.graph(y).at_batch(1)
    assert peak_activation_bytes(graph) == 40 + 40 + 40
    assert peak_activation_bytes(graph, in_place=True) == 40 + 40
    skipped = Sketch()
    x = skipped.input(BATCH, 10)
    kept = skipped.call("exp", [x], BATCH, 10)
    y = kept
    for _ in range(3):
        y = skipped.call("tanh", [y], BATCH, 10)
    graph = skipped.graph(skipped.call("add", [y, kept], BATCH, 10)).at_batch(1)
    assert peak_activation_bytes(graph) == 4 * 40


def test_the_peak_names_the_operator_that_completes_it():
    s = Sketch()
    x = s.input(BATCH, 10)
    wide = s.call("concat", [s.call("exp", [x], BATCH, 10), x], BATCH, 20, axis=1)
    graph = s.graph(s.call("mean", [s.call("tanh", [wide], BATCH, 20)], BATCH, axis=1)).at_batch(1)
    place = peak(graph).node
    assert place is not None
    assert graph.nodes[place].op == "tanh"
    empty = replace(graph, nodes=(), edges=(), output_nodes=())
    assert peak(empty).node is None


def test_the_table_keeps_its_word():
    assert all(name == row.name for name, row in OPERATORS.items())
    assert not [row.name for row in OPERATORS.values() if row.category == "view" and row.macs]


def test_operators_of_torchvision_are_known():
    s = Sketch()
    x, offset = s.input(BATCH, 4, 8, 8), s.input(BATCH, 18, 8, 8)
    sizes = {"stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1, "groups": 1}
    y = s.call("aten.deform_conv2d", [x, s.weight(8, 4, 3, 3), offset], BATCH, 8, 8, 8, **sizes)
    graph = s.graph(s.call("aten.roi_align", [y, s.weight(5, 5)], 5, 8, 3, 3)).at_batch(1)
    assert ops(graph) == ["deform_conv2d", "roi_align"]
    assert graph.macs == 64 * 9 * 4 * 8


def test_strides_follow_memory_that_is_read_as_other_elements() -> None:
    assert view_strides((2, 3, 4, 2), (24, 8, 2, 1), (2, 3, 4)) == (12, 4, 1)
    assert view_strides((2, 3, 4), (12, 1, 3), (2, 3, 4, 2)) == (24, 2, 6, 1)
    assert view_strides((3, 8), (8, 1), (3, 2)) == (2, 1)
    assert view_strides((1, 4, 2), (1, 2, 1), (1, 4))[1:] == (1,)
    assert view_strides((4, 2), (1, 4), (4,)) is None  # the parts do not lie beside each other
    assert view_strides((2, 4), (4, 1), (2, 4, 3, 2)) is None


def test_a_sum_over_all_that_gets_an_axis_is_divided_as_it_is():
    """Paddle's std of all elements: the number becomes a tensor of one, then an operand."""
    s = Sketch()
    x = s.input(BATCH, 8)
    total = s.call("sum", [s.call("matmul", [x, s.weight(8, 8)], BATCH, 8)])
    one = s.call("reshape", [total], 1)
    graph = s.graph(s.call("divide", [one, s.number(8.0, 1)], 1))
    assert ops(graph)[-1] == "divide"
