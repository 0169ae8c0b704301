"""R8: what recurrent layers read and hand on, beside the sequence."""

from __future__ import annotations

from tests.unit.graph.sketch import BATCH, Sketch, ops

STEPS, WIDTH, HIDDEN = 10, 16, 24
CELL = 4 * HIDDEN * (WIDTH + HIDDEN)


def layer(s, x, states=(), **attributes):
    """Return the sequence and both final states of an LSTM."""
    weights = [s.weight(WIDTH, 4 * HIDDEN), s.weight(HIDDEN, 4 * HIDDEN)]
    shapes = [(STEPS, BATCH, HIDDEN), (BATCH, HIDDEN), (BATCH, HIDDEN)]
    marks = {"hidden_size": HIDDEN, "input_size": WIDTH, "steps": STEPS, **attributes}
    return s.calls("tf.LSTM", [x, *weights, *states], shapes, **marks)


def backward(s, x):
    flipped = s.call("flip", [x], STEPS, BATCH, WIDTH, axis=0)
    sequence, *states = layer(s, flipped)
    return s.call("flip", [sequence], STEPS, BATCH, HIDDEN, axis=0), *states


def both(s, x):
    """Return the joined sequence and the states of two directions."""
    (ahead, *first), (back, *second) = layer(s, x), backward(s, x)
    joined = s.call("concat", [ahead, back], STEPS, BATCH, 2 * HIDDEN, axis=2)
    return joined, ahead, [*first, *second]


def test_a_decoder_keeps_the_encoder_that_its_states_come_from():
    s = Sketch()
    encoder = layer(s, s.input(STEPS, BATCH, WIDTH))
    sequence = layer(s, s.input(STEPS, BATCH, WIDTH), encoder[1:])[0]
    graph = s.graph(sequence)
    assert ops(graph) == ["lstm", "lstm"]
    assert graph.edges == ((0, 1),)
    assert graph.at_batch(1).macs == 2 * STEPS * CELL


def test_initial_states_of_zeros_are_no_edge():
    s = Sketch()
    zeros = [s.number(0.0, BATCH, HIDDEN) for _ in range(2)]
    graph = s.graph(layer(s, s.input(STEPS, BATCH, WIDTH), zeros)[0])
    assert (ops(graph), graph.edges) == (["lstm"], ())


def test_stacked_layers_all_read_their_states():
    s = Sketch()
    states = layer(s, s.input(STEPS, BATCH, WIDTH))[1:]
    deep = layer(s, s.input(STEPS, BATCH, HIDDEN), states, layers=2, num_layers=2)[0]
    graph = s.graph(deep)
    assert ops(graph) == ["lstm"] * 3
    assert graph.edges == ((0, 1), (0, 2), (1, 2))


def test_two_directions_are_joined_once_though_their_states_are_used():
    s = Sketch()
    joined, _, states = both(s, s.input(STEPS, BATCH, WIDTH))
    graph = s.graph(joined, *states)
    (node,) = [node for node in graph.nodes if node.op == "lstm"]
    assert node.attributes["directions"] == 2
    assert graph.at_batch(1).macs == 2 * STEPS * CELL
    assert set(graph.output_nodes) == {graph.nodes.index(node)}


def test_directions_of_which_one_is_read_alone_stay_apart():
    s = Sketch()
    joined, ahead, _ = both(s, s.input(STEPS, BATCH, WIDTH))
    graph = s.graph(joined, s.call("exp", [ahead], STEPS, BATCH, HIDDEN))
    assert [n.attributes["directions"] for n in graph.nodes if n.op == "lstm"] == [1, 1]
    assert graph.at_batch(1).macs == 2 * STEPS * CELL
