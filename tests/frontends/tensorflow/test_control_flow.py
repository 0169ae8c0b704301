"""Loops and branches are written out as far as their course is known; the rest is said."""

from __future__ import annotations

import pytest

from dippm.model.graph import build
from tests.frontends.tensorflow import loops, models
from tests.frontends.tensorflow.counts import histogram, macs, read
from tests.samples import sampled

PRODUCT = loops.WIDTH**2


@pytest.fixture
def convert(child, tmp_path):
    """Convert a model of `loops`; return the raw graph, or the error."""

    def converted(name, spec=None):
        path = child(loops.save, name, tmp_path / name)
        return child(models.convert, path, spec)

    return converted


@pytest.mark.parametrize(
    ("name", "products", "shape"),
    sampled(
        [
            ("loop", 3, (16,)),
            ("nested", 1 + 2 + 3, (16,)),
            ("stepping", 7, (16,)),
            ("written", 7, (7 * 16,)),
            ("pushed", 7, (7, 16)),
            ("fold", 6, (16,)),
            ("some_rows", 4 * 2, (16,)),
            ("all_rows", 7 * 2, (16,)),
            ("vectorized", 7, (7, 16)),
            ("growing", 7, (9,)),
        ],
        pytest.mark.nightly(part="frontends"),
    ),
)
def test_known_loops_are_counted_step_by_step(name, products, shape, convert):
    graph = read(convert(name))
    assert graph.values[graph.outputs[0]].shape == (graph.batch, *shape)
    assert macs(graph) == products * PRODUCT
    assert build(graph).at_batch(1).macs == products * PRODUCT
    assert graph.batch_is_symbolic
    assert graph.notes == ()
    assert not any(o.name.startswith(("tf.While", "tf.TensorList")) for o in graph.operators)


@pytest.mark.parametrize(("name", "products"), [("scan", 6), ("backwards", 7), ("map_steps", 7)])
def test_rows_are_read_and_stacked(name, products, convert):
    graph = read(convert(name))
    assert graph.values[graph.outputs[0]].shape == (7, graph.batch, 16)
    assert macs(graph) == products * PRODUCT


def test_a_loop_over_the_samples_is_read_with_one_sample(convert):
    graph = read(convert("map_samples"))
    assert (graph.batch, graph.batch_is_symbolic) == (1, False)
    assert macs(graph) == 7 * PRODUCT
    (note,) = graph.notes
    assert "map/while runs once for each sample" in note
    assert "batch of 1" in note


def test_a_loop_that_data_end_is_named(convert):
    graph = read(convert("data"))
    assert histogram(graph) == {"tf.While": 1}
    assert "as long as its data say" in graph.notes[0]
    assert "not counted" in graph.notes[0]


def test_a_loop_with_a_bound_is_read_to_the_bound(convert):
    graph = read(convert("at_most"))
    assert macs(graph) == 5 * PRODUCT
    assert "may stop early" in graph.notes[0]


def test_a_loop_that_is_too_long_is_named(convert):
    graph = read(convert("endless"))
    assert histogram(graph) == {"tf.While": 1}
    assert "steps" in graph.notes[0]


@pytest.mark.nightly(part="frontends")
def test_thousands_of_loops_are_carried_and_named_once(convert):
    graph = read(convert("thousands"))
    assert histogram(graph)["tf.While"] > 1_000
    assert len(graph.notes) == 2
    assert all("not counted" in note for note in graph.notes)


def test_branches_in_branches(convert):
    graph = read(convert("deep"))
    assert macs(graph) == PRODUCT
    assert len(graph.notes) == 12


def test_sizes_that_data_decide_are_refused(convert):
    error, message, hint = convert("unknown_sizes")
    assert error == "ConversionError"
    assert "depend on data" in message
    assert hint


def test_the_costlier_branch_is_read_and_that_is_said(convert):
    graph = read(convert("branch"))
    assert macs(graph) == PRODUCT
    assert graph.notes == ("data decide which of 2 branches of cond runs: the costliest was read",)
    graph = read(convert("switch"))
    assert macs(graph) == 2 * PRODUCT
    assert "3 branches" in graph.notes[0]


def test_a_condition_on_sizes_is_no_question(convert):
    graph = read(convert("known_branch"))
    assert histogram(graph) == {"multiply": 1}
    assert graph.notes == ()


def test_the_number_of_an_input_decides(convert):
    graph = read(convert("switch", "n=value:1"))
    assert (macs(graph), graph.notes) == (PRODUCT, ())
    assert [graph.values[i].name for i in graph.inputs] == ["x"]
    assert macs(read(convert("times", "n=value:4"))) == 4 * PRODUCT


@pytest.mark.parametrize("spec", ["x=value:4", "n=value:1.5", "m=value:1"])
def test_numbers_that_fit_no_input_are_refused(spec, convert):
    error, message, hint = convert("times", spec)
    assert error == "InputShapeError", message
    assert hint


def test_a_batch_that_is_not_first(convert):
    graph = read(convert("time_major", "7,N,16"))
    assert graph.values[graph.inputs[0]].shape == (7, graph.batch, 16)
    assert graph.batch_is_symbolic
    assert build(graph).at_batch(3).macs == 3 * 7 * PRODUCT
    error, _, hint = convert("time_major")
    assert error == "InputShapeError"
    assert 'input="7,N,16"' in hint
    error, message, _ = convert("time_major", "7,5,N")
    assert error == "InputShapeError", message


@pytest.mark.parametrize(
    ("name", "spec"),
    sampled(
        [
            ("edges", None),
            ("edges", "edges=fixed:2,30"),
            ("free_edges", "edges=fixed:2,30"),
            ("fixed_edges", "x=16;edges=fixed:2,30"),
        ],
        pytest.mark.nightly(part="frontends"),
    ),
)
def test_an_input_without_batch(name, spec, convert):
    graph = read(convert(name, spec))
    shapes = {graph.values[i].name: graph.values[i].shape for i in graph.inputs}
    assert shapes == {"x": (graph.batch, 16), "edges": (2, 30)}
    assert (graph.batch == 300) == (name == "fixed_edges")
    assert graph.batch_is_symbolic != (name == "fixed_edges")
    assert macs(graph) == PRODUCT


def test_two_fixed_first_sizes_are_a_question(convert):
    error, message, hint = convert("fixed_edges")
    assert error == "InputShapeError"
    assert "(2, 30)" in message
    assert "edges=fixed:2,30" in hint
    error, _, hint = convert("free_edges", "edges=2,30")
    assert error == "InputShapeError"
    assert "edges=fixed:2,30" in hint


@pytest.mark.parametrize(
    ("name", "products", "named"),
    [
        ("edges", 1, "scatter"),
        ("sparse_updates", 1, "scatter"),
        ("patches", 16, "im2col"),
    ],
)
def test_operators_that_only_tensorflow_spells_so(name, products, named, convert):
    graph = build(read(convert(name)))
    assert not graph.unknown_ops
    assert graph.histogram()[named] >= 1
    assert graph.at_batch(1).macs == products * PRODUCT


def test_complex_numbers_are_refused_by_name(convert):
    error, message, hint = convert("signal")
    assert error == "ConversionError"
    assert "complex" in message
    assert hint


def test_truth_values_and_text(convert):
    graph = read(convert("masked"))
    assert {graph.values[i].dtype for i in graph.inputs} == {"float32", "bool"}
    error, message, hint = convert("text")
    assert error == "ConversionError"
    assert "text" in message
    assert hint
