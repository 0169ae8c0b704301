"""How inputs are bound, and what is said if they cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.errors import InputShapeError
from dippm.frontends.frontend import MARKER_BATCHES

MARKER = MARKER_BATCHES[0]
CONV = helper.make_node("Conv", ["x", "w"], ["y"])
WEIGHTS = {"w": (4, 3, 3, 3)}


def shapes(raw):
    return [raw.values[i].shape for i in raw.inputs]


@pytest.mark.parametrize("batch", ["N", None, 1, 8])
def test_any_batch_becomes_the_marker(convert, make, batch):
    raw = convert(make([CONV], [("x", [batch, 3, 8, 8])], [("y", None)], weights=WEIGHTS))
    assert shapes(raw) == [(MARKER, 3, 8, 8)]
    assert (raw.batch, raw.batch_is_symbolic) == (MARKER, True)


def test_a_size_of_the_model_is_never_the_marker(convert, make):
    raw = convert(
        make([CONV], [("x", ["N", 3, 8, 8])], [("y", None)], weights={"w": (MARKER, 3, 3, 3)})
    )
    assert raw.batch == MARKER_BATCHES[1]


def test_a_batch_in_an_inner_size_keeps_the_batch_of_the_file(convert, make):
    nodes = [helper.make_node("Reshape", ["x", "sizes"], ["y"])]
    raw = convert(
        make(nodes, [("x", [4, 3, 8])], [("y", None)], constants={"sizes": np.array([4, 24])})
    )
    assert (raw.batch, raw.batch_is_symbolic) == (4, False)
    assert shapes(raw) == [(4, 3, 8)]


def test_a_batch_that_leaks_into_a_product_keeps_the_batch_of_the_file(convert, make):
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["m"]),
        helper.make_node("Transpose", ["m"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["m", "t"], ["y"]),
    ]
    raw = convert(
        make(nodes, [("x", [1, 7, 8])], [("y", None)], constants={"rows": np.array([1, -1, 8])})
    )
    assert (raw.batch, raw.batch_is_symbolic) == (1, False)
    assert raw.values[raw.outputs[0]].shape == (1, 7, 7)


def test_open_sizes_are_given_by_the_request(convert, make):
    model = make([CONV], [("x", ["N", 3, "height", "width"])], [("y", None)], weights=WEIGHTS)
    assert shapes(convert(model, {"": (3, 16, 20)})) == [(MARKER, 3, 16, 20)]
    with pytest.raises(InputShapeError, match="height") as caught:
        convert(model)
    assert 'input="x=3,128,128"' in caught.value.hint


def test_one_request_binds_the_same_name_everywhere(convert, make):
    inputs = [("ids", ["batch", "steps"], 7), ("mask", ["batch", "steps"], 7)]
    nodes = [
        helper.make_node("Mul", ["ids", "mask"], ["m"]),
        helper.make_node("Gather", ["table", "m"], ["y"]),
    ]
    model = make(nodes, inputs, [("y", None)], weights={"table": (50, 8)})
    assert shapes(convert(model, {"ids": (16,)})) == [(MARKER, 16), (MARKER, 16)]
    with pytest.raises(InputShapeError, match=r"ids .*mask "):
        convert(model)


def test_an_open_second_input_is_asked_for_by_name(convert, make):
    inputs = [("a", ["batch", "rows", 8]), ("b", ["batch", "columns", 8])]
    nodes = [helper.make_node("Concat", ["a", "b"], ["y"], axis=1)]
    with pytest.raises(InputShapeError, match="'b'") as caught:
        convert(make(nodes, inputs, [("y", None)]), {"": (4, 8)})
    assert 'input="a=128,8;b=128,8"' in caught.value.hint


def test_an_input_without_a_batch_beside_one_with(convert, make):
    inputs = [("x", ["batch", 4, 8]), ("mask", [4, 8])]
    model = make([helper.make_node("Add", ["x", "mask"], ["y"])], inputs, [("y", None)])
    assert shapes(convert(model)) == [(MARKER, 4, 8), (4, 8)]


@pytest.mark.parametrize(
    ("request_shape", "words"),
    [
        ((3, 8), ["(3, 8)", "(3, 8, 8)", "number of dimensions"]),
        ((1, 3, 8, 8), ["(1, 3, 8, 8)", "(3, 8, 8)"]),
        ((3, 9, 8), ["(3, 9, 8)", "9 where the file says 8"]),
    ],
)
def test_a_request_that_does_not_fit(convert, make, request_shape, words):
    model = make([CONV], [("x", ["N", 3, 8, 8])], [("y", None)], weights=WEIGHTS)
    with pytest.raises(InputShapeError) as caught:
        convert(model, {"": request_shape})
    assert all(word in caught.value.message for word in [*words, "'x'"])


def test_channels_last_for_a_model_with_channels_first(convert, make):
    model = make([CONV], [("x", ["N", 3, "h", "w"])], [("y", None)], weights=WEIGHTS)
    with pytest.raises(InputShapeError) as caught:
        convert(model, {"": (8, 8, 3)})
    assert "channels first: (3, 8, 8)" in caught.value.hint


def test_an_unknown_input_name(convert, make):
    model = make([CONV], [("image", ["N", 3, 8, 8])], [("y", None)], weights=WEIGHTS)
    model.graph.node[0].input[0] = "image"
    with pytest.raises(InputShapeError, match="imago") as caught:
        convert(model, {"imago": (3, 8, 8)})
    assert "'image'" in caught.value.hint


def test_a_size_that_an_inner_operator_refuses(convert, make):
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["y"], name="classifier"),
    ]
    model = make(nodes, [("x", ["N", 3, "h", "w"])], [("y", None)], weights={"w": (192, 10)})
    assert shapes(convert(model, {"": (3, 8, 8)})) == [(MARKER, 3, 8, 8)]
    with pytest.raises(InputShapeError, match="classifier"):
        convert(model, {"": (3, 9, 8)})


def test_integer_inputs_keep_their_type(convert, make):
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    model = make(
        [node], [("ids", ["N", 16], TensorProto.INT64)], [("y", None)], weights={"table": (50, 8)}
    )
    raw = convert(model)
    assert raw.values[raw.inputs[0]].dtype == "int64"
