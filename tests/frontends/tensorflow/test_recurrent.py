"""Loops around recurrent cells become one node; other loops are carried whole."""

from __future__ import annotations

import pytest

from tests.frontends.tensorflow import models
from tests.frontends.tensorflow.counts import histogram, macs

KINDS = pytest.mark.parametrize("kind", models.KINDS)


@KINDS
@pytest.mark.parametrize(
    ("name", "operator", "gates", "returns_steps"),
    [
        ("gru", "tf.GRU", 3, True),
        ("gru_reset_before", "tf.GRU", 3, False),
        ("rnn", "tf.RNN", 1, False),
    ],
)
def test_one_layer_is_one_node(name, operator, gates, returns_steps, kind, converted):
    graph = converted(name, kind)
    (node,) = [o for o in graph.operators if o.name == operator]
    assert node.attributes == {
        "hidden_size": 24,
        "input_size": 16,
        "steps": 32,
        "layers": 1,
        "bidirectional": 0,
    }
    assert macs(graph) == 32 * gates * 24 * (16 + 24)
    expected = (graph.batch, 32, 24) if returns_steps else (graph.batch, 24)
    assert graph.values[graph.outputs[0]].shape == expected


@KINDS
def test_stacked_layers(kind, converted):
    graph = converted("lstm", kind)
    assert histogram(graph)["tf.LSTM"] == 2
    first, second = 4 * 64 * (16 + 64), 4 * 24 * (64 + 24)
    assert macs(graph) == 32 * (first + second) + 24 * 3
    node = next(o for o in graph.operators if o.name == "tf.LSTM")
    weights = [graph.values[i].shape for i in node.inputs[1:]]
    assert set(weights) == {(16, 256), (64, 256), (256,)}
    states = [graph.values[i].shape for i in node.outputs]
    assert states == [(32, graph.batch, 64), (graph.batch, 64), (graph.batch, 64)]


@KINDS
def test_both_directions(kind, converted):
    graph = converted("bilstm", kind)
    assert histogram(graph)["tf.LSTM"] == 2
    assert histogram(graph)["flip"] == 2
    assert macs(graph) == 2 * 32 * 4 * 24 * (16 + 24)
    assert graph.values[graph.outputs[0]].shape == (graph.batch, 32, 48)


@pytest.mark.parametrize("kind", ["keras", "savedmodel"])
def test_a_mask_does_not_hide_the_layer(kind, converted):
    graph = converted("masked_lstm", kind)
    assert histogram(graph)["tf.LSTM"] == 1
    assert histogram(graph)["take"] == 1
    assert macs(graph) == 32 * 4 * 24 * (16 + 24)


@KINDS
def test_another_loop_is_carried_and_named(kind, converted):
    graph = converted("conv_lstm", kind)
    (loop,) = [o for o in graph.operators if o.name == "tf.While"]
    assert loop.attributes["steps"] == 5
    assert graph.values[graph.outputs[0]].shape == (graph.batch, 8, 8, 4)
