"""Loops around recurrent cells become one node; loops around other cells are written out."""

from __future__ import annotations

import pytest

from dippm.model.graph import build
from tests.frontends.tensorflow import models
from tests.frontends.tensorflow.counts import histogram, macs
from tests.samples import sampled

KINDS = pytest.mark.parametrize("kind", models.KINDS)
KINDS_BY_TURNS = pytest.mark.parametrize(
    "kind", sampled(models.KINDS, pytest.mark.nightly(part="frontends"))
)


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


LSTM, GRU, RNN = (gates * 24 * (16 + 24) for gates in (4, 3, 1))
SECOND = 12 * (24 + 12)
LAYERS = {
    "lstm_states": 8 * LSTM,
    "encoder_decoder": (10 + 7) * LSTM,
    "both_with_states": 8 * 2 * LSTM,
    "both_summed": 8 * 2 * RNN,
    "backwards": 8 * LSTM,
    "unrolled_lstm": 8 * LSTM,
    "unrolled_gru": 8 * GRU,
    "stacked_cells": 8 * (LSTM + 4 * SECOND),
    "stacked_gru_cells": 8 * (GRU + 3 * SECOND),
    "zero_output": 8 * LSTM,
    "masked_both": 8 * 2 * GRU,
    "lstm_on_every_step": 3 * 8 * LSTM,
    "conv_lstm_1d": 5 * 8 * 3 * (3 + 4) * 4 * 4,
    "conv_lstm": 5 * 8**2 * 3**2 * (3 + 4) * 4 * 4,
    "conv_lstm_3d": 5 * 4**3 * 3**3 * (3 + 4) * 4 * 4,
    "conv_lstm_both": 2 * 5 * 8**2 * 3**2 * (3 + 4) * 4 * 4,
}


@KINDS_BY_TURNS
@pytest.mark.parametrize("name", LAYERS)
def test_multiplications_of_every_kind_of_layer(name, kind, converted):
    graph = converted(name, kind)
    assert macs(graph) == LAYERS[name]
    assert build(graph).at_batch(1).macs == LAYERS[name]
    assert not build(graph).unknown_ops
    assert graph.batch_is_symbolic
    assert graph.notes == ()


def test_results_of_a_layer_with_states(converted):
    graph = converted("both_with_states")
    shapes = [graph.values[i].shape[1:] for i in graph.outputs]
    assert shapes == [(48,), (24,), (24,), (24,), (24,)]
    assert [n.op for n in build(graph).nodes].count("lstm") == 1
    graph = converted("encoder_decoder")
    assert [n.op for n in build(graph).nodes].count("lstm") == 2


@KINDS_BY_TURNS
@pytest.mark.parametrize("name", ["stateful_lstm", "stateful_gru", "stateful_both"])
def test_layers_with_states_of_a_fixed_batch(name, kind, converted):
    graph = converted(name, kind)
    assert (graph.batch, graph.batch_is_symbolic) == (4, False)
    assert macs(graph) == {"lstm": 8 * LSTM, "gru": 8 * GRU, "both": 8 * 2 * LSTM}[name[9:]]
    assert graph.values[graph.outputs[0]].shape[0] == 4
    assert not build(graph).unknown_ops


@KINDS
def test_notes_and_paths_name_the_layer(kind, converted):
    graph = converted("stacked_cells", kind)
    paths = {o.path for o in graph.operators if o.name == "matmul"}
    assert len(paths) >= 1
    assert all("two_cells" in path for path in paths)
