"""The path of a module stays with its operators, and never enters equality."""

from __future__ import annotations

from dippm.model.graph import ModelGraph
from dippm.model.relax.raw_graph import RawGraph
from tests.unit.graph.sketch import BATCH, Sketch


def block(*, conv: str, norm: str, gelu: str) -> Sketch:
    """A convolution with bias and batch norm, then GELU in its five pieces."""
    s = Sketch()
    image = s.input(BATCH, 3, 8, 8)
    s.path = conv
    x = s.conv(image, s.weight(4, 3, 3, 3), BATCH, 4, 8, 8)
    x = s.call("add", [x, s.weight(1, 4, 1, 1)], BATCH, 4, 8, 8)
    s.path = norm
    statistics = [s.weight(4) for _ in range(4)]
    x = s.call("nn.batch_norm", [x, *statistics], BATCH, 4, 8, 8, axis=1)
    s.path = gelu
    half = s.call("multiply", [x, s.number(0.5)], BATCH, 4, 8, 8)
    scaled = s.call("divide", [x, s.number(2**0.5)], BATCH, 4, 8, 8)
    erf = s.call("erf", [scaled], BATCH, 4, 8, 8)
    gate = s.call("add", [erf, s.number(1.0)], BATCH, 4, 8, 8)
    s.call("multiply", [half, gate], BATCH, 4, 8, 8)
    return s


def graph_of(s: Sketch) -> ModelGraph:
    return s.graph(len(s.values) - 1)


def test_what_is_merged_keeps_the_path_of_the_main_operator():
    graph = graph_of(block(conv="body.0", norm="body.1", gelu="act"))
    assert [(n.op, n.path) for n in graph.nodes] == [("conv2d", "body.0"), ("gelu", "act")]


def test_twins_that_differ_in_paths_only_are_equal():
    here = graph_of(block(conv="body.0", norm="body.1", gelu="act"))
    there = graph_of(block(conv="stem/conv", norm="stem/norm", gelu=""))
    assert here == there
    assert [n.path for n in here.nodes] != [n.path for n in there.nodes]


def test_another_batch_keeps_paths():
    graph = graph_of(block(conv="body.0", norm="body.1", gelu="act"))
    assert [n.path for n in graph.at_batch(7).nodes] == ["body.0", "act"]


def test_a_mean_that_becomes_pool_and_view_gives_both_its_path():
    s = Sketch()
    image = s.input(BATCH, 4, 8, 8)
    s.path = "pool"
    mean = s.call("mean", [image], BATCH, 4, axis=(2, 3), keepdims=0)
    assert {n.path for n in s.graph(mean).nodes} == {"pool"}


def test_layers_of_a_stack_share_the_path_of_the_stack():
    s = Sketch()
    sequence = s.input(BATCH, 5, 6)
    s.path = "rnn"
    weights = [s.weight(32, 6), s.weight(32, 8), s.weight(32, 8), s.weight(32, 8)]
    out = s.call(
        "aten.lstm", [sequence, *weights], BATCH, 5, 8, num_layers=2, batch_first=1, hidden_size=8
    )
    assert [(n.op, n.path) for n in s.graph(out).nodes] == [("lstm", "rnn"), ("lstm", "rnn")]


def test_paths_survive_the_border_and_the_cache():
    raw = block(conv="body.0", norm="", gelu="ünïcode/act").raw(0)
    read = RawGraph.from_json(raw.to_json())
    assert [o.path for o in read.operators] == [o.path for o in raw.operators]
