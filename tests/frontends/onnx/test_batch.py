"""Which dimension is the batch: named by the user, by the file, by all inputs, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.errors import InputShapeError, ModelFileError
from dippm.model.frontends.frontend import MARKER_BATCHES

MARKER = MARKER_BATCHES[0]
INT64 = TensorProto.INT64


def shapes(raw):
    return [raw.values[i].shape for i in raw.inputs]


@pytest.fixture
def relu(make):
    """A model with one input of the given sizes."""
    return lambda sizes: make(
        [helper.make_node("Relu", ["x"], ["y"])], [("x", sizes)], [("y", None)]
    )


@pytest.fixture
def lstm(make):
    def build(sizes):
        node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4, name="lstm")
        weights = {"w": (1, 16, 8), "r": (1, 16, 4)}
        return make([node], [("x", sizes)], [("y", None)], weights=weights)

    return build


@pytest.fixture
def graph_convolution(make):
    def build(nodes, edges):
        steps = [
            helper.make_node("Gather", ["edge_index", "zero"], ["source"], axis=0),
            helper.make_node("Gather", ["x", "source"], ["messages"], axis=0),
            helper.make_node("MatMul", ["messages", "w"], ["y"]),
        ]
        inputs = [("x", [nodes, 16]), ("edge_index", [2, edges], INT64)]
        return make(
            steps, inputs, [("y", None)], weights={"w": (16, 4)}, constants={"zero": np.int64(0)}
        )

    return build


def test_the_user_names_the_axis(convert, relu):
    assert shapes(convert(relu([None, None, 8]), "x=35,N,8")) == [(35, MARKER, 8)]
    assert shapes(convert(relu([35, 20, 8]), "35,N,8")) == [(35, MARKER, 8)]


def test_the_user_says_that_there_is_no_batch(convert, relu):
    raw = convert(relu(["nodes", 8]), "x=fixed:100,8")
    assert shapes(raw) == [(100, 8)]
    assert (raw.batch, raw.batch_is_symbolic) == (1, False)


@pytest.mark.parametrize("name", ["batch", "N", "batch_size"])
def test_a_name_in_the_file_is_believed_wherever_it_stands(convert, relu, name):
    assert shapes(convert(relu([35, name, 8]))) == [(35, MARKER, 8)]


@pytest.mark.parametrize("sizes", [["sequence", 8], ["num_nodes", 8], ["seq_len", None, 8]])
def test_a_first_dimension_that_is_called_something_else_is_refused(convert, relu, sizes):
    with pytest.raises(InputShapeError, match="which dimension") as caught:
        convert(relu(sizes), "128" if len(sizes) == 2 else "1,8")
    assert "N" in caught.value.hint
    assert "fixed:" in caught.value.hint


@pytest.mark.parametrize("name", ["rows", "num_samples", "s0", "x_dynamic_axes_1", "unk__7"])
def test_other_names_of_a_first_dimension_are_those_of_a_batch(convert, relu, name):
    assert shapes(convert(relu([name, 8]))) == [(MARKER, 8)]


def test_an_image_without_a_batch_is_refused(convert, relu):
    with pytest.raises(InputShapeError, match="which dimension"):
        convert(relu([3, "h", "w"]), "224,224")


def test_edges_are_given_no_batch(convert, graph_convolution):
    model = graph_convolution("num_nodes", "num_edges")
    raw = convert(model, "x=fixed:100,16;edge_index=fixed:2,300")
    assert shapes(raw) == [(100, 16), (2, 300)]
    assert raw.values[raw.outputs[0]].shape == (300, 4)
    with pytest.raises(InputShapeError, match="which dimension") as caught:
        convert(model)
    assert "edge_index=fixed:2,128" in caught.value.hint


def test_inputs_without_a_common_size_are_taken_as_they_are(convert, graph_convolution):
    raw = convert(graph_convolution(100, 300))
    assert shapes(raw) == [(100, 16), (2, 300)]
    assert not raw.batch_is_symbolic
    assert "no common" in raw.notes[0]


@pytest.mark.parametrize("sizes", [[35, 20, 8], [1, 1, 8], [None, None, 8]])
def test_time_steps_of_a_recurrent_layer_are_no_batch(convert, lstm, sizes):
    raw = convert(lstm(sizes), {"": (35, 8)} if sizes[0] is None else None)
    assert raw.values[raw.inputs[0]].shape == (sizes[0] or 35, MARKER, 8)


def test_a_batch_named_for_the_steps_is_the_files_word(convert, lstm):
    assert shapes(convert(lstm(["batch", 5, 8]))) == [(MARKER, 5, 8)]


def test_sizes_of_a_declared_inner_value_follow_the_names_of_the_inputs(convert, make):
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["m"], domain="com.example"),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    model = make(nodes, [("x", ["batch", "steps"])], [("y", None)], domains=["com.example"])
    model.graph.value_info.append(
        helper.make_tensor_value_info("m", TensorProto.FLOAT, ["batch", "steps", 5])
    )
    raw = convert(model, {"": (7,)})
    assert raw.values[raw.outputs[0]].shape == (MARKER, 7, 5)


@pytest.mark.parametrize("size", [1 << 62, -7, (1 << 63) - 1])
def test_sizes_that_no_tensor_has(convert, relu, size):
    with pytest.raises(InputShapeError, match=str(size)) as caught:
        convert(relu(["N", size]))
    assert caught.value.hint


def test_sizes_whose_product_no_device_holds(convert, relu):
    with pytest.raises(InputShapeError, match="numbers"):
        convert(relu(["N", 1 << 30, 1 << 30]))


def test_a_result_that_no_device_holds(convert, make):
    node = helper.make_node("Expand", ["x", "sizes"], ["y"], name="grow")
    model = make(
        [node], [("x", ["N", 1, 1])], [("y", None)],
        constants={"sizes": np.array([1, 1 << 31, 1 << 31])},
    )  # fmt: skip
    with pytest.raises(ModelFileError, match="grow"):
        convert(model)
