"""How inputs are bound, and what is said if they cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.errors import ConversionError, InputShapeError
from dippm.model.frontends.frontend import MARKER_BATCHES

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


def test_a_batch_that_the_file_writes_as_a_number_is_any_batch(convert, make):
    nodes = [helper.make_node("Reshape", ["x", "sizes"], ["y"], name="flat")]
    raw = convert(
        make(nodes, [("x", [4, 3, 8])], [("y", None)], constants={"sizes": np.array([4, 24])})
    )
    assert (raw.batch, raw.batch_is_symbolic) == (MARKER, True)
    assert raw.values[raw.outputs[0]].shape == (MARKER, 24)
    assert "fixes batch 4" in raw.notes[0]
    assert "'flat'" in raw.notes[0]


def test_a_batch_that_would_leak_into_a_product_stays_in_its_place(convert, make):
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["m"]),
        helper.make_node("Transpose", ["m"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["m", "t"], ["y"]),
    ]
    raw = convert(
        make(nodes, [("x", [1, 7, 8])], [("y", None)], constants={"rows": np.array([1, -1, 8])})
    )
    assert raw.values[raw.outputs[0]].shape == (MARKER, 7, 7)


def test_a_class_token_is_repeated_for_the_batch_of_a_file_with_one(convert, make):
    model = make(
        [helper.make_node("Concat", ["token", "x"], ["y"], axis=1)],
        [("x", [1, 7, 8])], [("y", None)], weights={"token": (1, 1, 8)},
    )  # fmt: skip
    raw = convert(model)
    assert raw.values[raw.outputs[0]].shape == (MARKER, 8, 8)


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Slice", ["x", "zero", "one", "zero"], ["y"], name="cut")],
        [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
         helper.make_node("Reshape", ["t", "sizes"], ["y"], name="cut")],
        [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Transpose", ["f"], ["t"]),
         helper.make_node("MatMul", ["f", "t"], ["y"], name="cut")],
    ],
    ids=["first sample", "no place", "product over samples"],
)  # fmt: skip
def test_what_cannot_have_another_batch_keeps_its_own_and_says_why(convert, make, nodes):
    numbers = {"zero": np.array([0]), "one": np.array([1]), "sizes": np.array([3, 2, 4, 4])}
    raw = convert(make(nodes, [("x", [4, 3, 8])], [("y", None)], constants=numbers))
    assert (raw.batch, raw.batch_is_symbolic) == (4, False)
    assert "batch 4 only" in raw.notes[0]
    assert "cut" in raw.notes[0]


def test_open_sizes_are_given_by_the_request(convert, make):
    model = make([CONV], [("x", ["N", 3, "height", "width"])], [("y", None)], weights=WEIGHTS)
    assert shapes(convert(model, {"": (3, 16, 20)})) == [(MARKER, 3, 16, 20)]
    with pytest.raises(InputShapeError, match="height") as caught:
        convert(model)
    assert "x=3,128,128" in caught.value.hint


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
    assert "a=128,8;b=128,8" in caught.value.hint


def test_the_example_fits_each_input(convert, make):
    """As recurrent models for speech declare theirs: a number, a batch that is not first, none."""
    nodes = [
        helper.make_node("Add", ["x", "rate"], ["a"]),
        helper.make_node("Add", ["a", "state"], ["b"]),
        helper.make_node("Add", ["b", "kept"], ["y"]),
    ]
    inputs = [("x", ["batch", "frames"]), ("rate", []), ("state", [2, "batch", 64])]
    path = make(nodes, [*inputs, ("kept", [4, 1, 64])], [("y", None)])
    with pytest.raises(InputShapeError) as caught:
        convert(path)
    assert '"x=128;rate=();state=2,64;kept=fixed:4,1,64"' in caught.value.hint


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


WHOLE = TensorProto.INT64


@pytest.mark.parametrize(
    ("node", "holds", "sizes", "result"),
    [
        (helper.make_node("Resize", ["x", "", "", "v"], ["y"]), "1,3,16,24", [4], (1, 3, 16, 24)),
        (helper.make_node("Reshape", ["x", "v"], ["y"]), "0,-1", [2], (1, 192)),
        (helper.make_node("Tile", ["x", "v"], ["y"]), "1,1,2,3", [4], (1, 3, 16, 24)),
        (helper.make_node("ReduceSum", ["x", "v"], ["y"]), "2", ["k"], (1, 3, 1, 8)),
        (helper.make_node("Expand", ["x", "v"], ["y"]), "[[1,3],[8,8]]", None, None),
    ],
    ids=["Resize", "Reshape", "Tile", "ReduceSum", "Expand"],
)
def test_sizes_that_arrive_as_an_array(convert, make, node, holds, sizes, result):
    inputs = [("x", [1, 3, 8, 8]), ("v", sizes or [4], WHOLE)]
    model = make([node], inputs, [("y", None)])
    if result is None:
        with pytest.raises(InputShapeError, match=r"value has the sizes \(2, 2\)"):
            convert(model, f"v=value:{holds}")
        return
    raw = convert(model, f"v=value:{holds}")
    shape = raw.values[raw.outputs[0]].shape
    assert (1, *shape[1:]) == result


def test_an_array_that_decides_sizes_is_asked_for(convert, make):
    node = helper.make_node("Reshape", ["x", "v"], ["y"])
    model = make([node], [("x", ["N", 12]), ("v", [3], WHOLE)], [("y", None)])
    with pytest.raises(ConversionError, match="value of input v") as caught:
        convert(model)
    assert "v=value:1,2,3" in caught.value.hint
    raw = convert(model, "v=value:-1,3,4")
    assert raw.values[raw.outputs[0]].shape == (MARKER_BATCHES[0], 3, 4)


def test_sizes_computed_from_a_value(convert, make):
    nodes = [
        helper.make_node("Split", ["v"], ["a", "b"], num_outputs=2),
        helper.make_node("Cast", ["b"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["f"], ["r"]),
        helper.make_node("Cast", ["r"], ["whole"], to=WHOLE),
        helper.make_node("Concat", ["minus", "a", "whole"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["x", "sizes"], ["y"]),
    ]
    inputs = [("x", ["N", 12]), ("v", [3], WHOLE)]
    constants = {"minus": np.array([-1])}
    raw = convert(make(nodes, inputs, [("y", None)], constants=constants, opset=18),
                  "v=value:2,3,2")  # fmt: skip
    assert raw.values[raw.outputs[0]].shape == (MARKER_BATCHES[0], 2, 3, 2)


def test_repeats_by_a_quotient_of_sizes(convert, make):
    """What PyTorch's exporter writes for a repetition: a one at the axis, else zero, plus one."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["wide"]),
        helper.make_node("Div", ["wide", "four"], ["times"]),
        helper.make_node("Clip", ["times", "", "two"], ["few"]),
        helper.make_node("Sub", ["few", "one"], ["more"]),
        helper.make_node("Concat", ["none", "more"], ["ends"], axis=0),
        helper.make_node("OneHot", ["last", "depth", "ends"], ["further"]),
        helper.make_node("Reshape", ["further", "row"], ["flat"]),
        helper.make_node("Add", ["flat", "one"], ["repeats"]),
        helper.make_node("Tile", ["x", "repeats"], ["y"]),
    ]
    constants = {
        "last": np.array([-1]), "four": np.array([4]), "two": np.array(2), "one": np.array([1]),
        "none": np.array([0]), "depth": np.array([2]), "row": np.array([2]),
    }  # fmt: skip
    raw = convert(make(nodes, [("x", ["N", 12])], [("y", None)], constants=constants))
    assert raw.values[raw.outputs[0]].shape == (MARKER_BATCHES[0], 24)
