"""`If`, `Loop`, `Scan`, sequences and values of scalar inputs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.errors import ConversionError, InputShapeError
from dippm.model.frontends.frontend import MARKER_BATCHES

MARKER = MARKER_BATCHES[0]
value = helper.make_tensor_value_info
IMAGE = [("x", ["N", 8])]


def branch(name, operator):
    return helper.make_graph(
        [helper.make_node(operator, ["x"], [name])], name, [], [value(name, 1, None)]
    )


@pytest.fixture
def by_rate(make):
    """What speech models do: another branch for each sampling rate."""

    def build(sizes=()):
        rate = helper.make_node("Equal", ["sr", "wide"], ["is_wide"])
        choice = helper.make_node(
            "If", ["is_wide"], ["y"], then_branch=branch("a", "Tanh"),
            else_branch=branch("b", "Relu"), name="by_rate",
        )  # fmt: skip
        inputs = [*IMAGE, ("sr", list(sizes), TensorProto.INT64)]
        return make([rate, choice], inputs, [("y", None)], constants={"wide": np.int64(16000)})

    return build


@pytest.mark.parametrize(
    ("given", "operator"),
    [("sr=value:16000", "tanh"), ("sr=value:8000", "nn.relu"), ("sr=16000", "tanh")],
)
def test_the_value_of_a_scalar_input_selects_the_branch(convert, by_rate, count, given, operator):
    assert count(convert(by_rate(), given)) == {operator: 1}


def test_an_input_of_one_number_may_have_a_value(convert, by_rate, count):
    assert count(convert(by_rate([1]), "sr=value:8000"))["nn.relu"] == 1


def test_a_missing_value_is_asked_for(convert, by_rate):
    with pytest.raises(ConversionError, match="'sr'") as caught:
        convert(by_rate())
    assert "sr=value:" in caught.value.hint


def test_a_value_for_more_than_one_number_is_refused(convert, by_rate):
    with pytest.raises(InputShapeError, match="more than one number"):
        convert(by_rate(), "x=value:3")


@pytest.fixture
def on_data(make):
    """A choice between two branches that only the data make."""

    def build(then_nodes, else_nodes):
        def inner(name, nodes):
            return helper.make_graph(nodes, name, [], [value(nodes[-1].output[0], 1, None)])

        nodes = [
            helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
            helper.make_node("Greater", ["total", "zero"], ["go"]),
            helper.make_node("If", ["go"], ["y"], then_branch=inner("a", then_nodes),
                             else_branch=inner("b", else_nodes), name="choice"),
        ]  # fmt: skip
        return make(nodes, IMAGE, [("y", None)], weights={"w": (8, 8)},
                    constants={"zero": np.float32(0)})  # fmt: skip

    return build


@pytest.mark.parametrize("is_swapped", [False, True])
def test_the_costlier_branch_stands_for_a_choice_that_data_make(
    convert, on_data, count, is_swapped
):
    branches = [
        [helper.make_node("Tanh", ["x"], ["a"])],
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["b"])],
    ]
    raw = convert(on_data(*(reversed(branches) if is_swapped else branches)))
    assert count(raw) == {"matmul": 1, "nn.relu": 1}
    assert raw.notes == ("data decide which of 2 branches of choice runs: the costliest was read",)


def test_branches_of_different_kinds_are_refused(convert, on_data):
    flat = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Flatten", ["t"], ["f"]),
            helper.make_node("ReduceSum", ["f"], ["a"], keepdims=0)]  # fmt: skip
    with pytest.raises(ConversionError, match=r"choice.*different kinds") as caught:
        convert(on_data(flat, [helper.make_node("Tanh", ["x"], ["b"])]))
    assert "before it" in caught.value.hint


def loop(body_nodes, results, *, carried=("v",), inputs=("trips", "", "x"), outputs=("y",)):
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), *body_nodes], "body",
        [value("i", 7, []), value("go", 9, []), *(value(c, 1, None) for c in carried)],
        [value("on", 9, []), *(value(r, 1, None) for r in results)],
    )  # fmt: skip
    return helper.make_node("Loop", list(inputs), list(outputs), name="steps", body=body)


def test_a_loop_of_known_rounds_is_counted_round_by_round(convert, make, count):
    node = loop([helper.make_node("Gemm", ["v", "w"], ["u"])], ["u"])
    model = make(
        [node], IMAGE, [("y", None)], weights={"w": (8, 8)}, constants={"trips": np.int64(3)}
    )
    raw = convert(model)
    assert count(raw) == {"matmul": 3}
    assert [v.name for v in raw.values if v.kind == "parameter"] == ["w"]


def test_weights_inside_a_loop_are_stored_once(convert, make):
    inner = helper.make_node(
        "Constant", [], ["k"],
        value=helper.make_tensor("k", TensorProto.FLOAT, [8, 8], np.ones(64)),
    )  # fmt: skip
    node = loop([inner, helper.make_node("Gemm", ["v", "k"], ["u"])], ["u"])
    raw = convert(make([node], IMAGE, [("y", None)], constants={"trips": np.int64(4)}))
    assert len([v for v in raw.values if v.kind == "parameter"]) == 1


def test_rows_of_a_loop_are_joined(convert, make):
    node = loop(
        [helper.make_node("Relu", ["v"], ["u"]), helper.make_node("Tanh", ["v"], ["row"])],
        ["u", "row"], outputs=("last", "y"),
    )  # fmt: skip
    raw = convert(make([node], IMAGE, [("y", None)], constants={"trips": np.int64(5)}))
    assert raw.values[raw.outputs[0]].shape == (5, MARKER, 8)


def test_a_loop_that_may_end_early_is_counted_whole_with_a_note(convert, make, count):
    body = [
        helper.make_node("Relu", ["v"], ["u"]),
        helper.make_node("ReduceSum", ["u"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["again"], to=TensorProto.BOOL),
    ]
    node = loop(body, ["u"])
    node.attribute[0].g.output[0].name = "again"
    raw = convert(make([node], IMAGE, [("y", None)], constants={"trips": np.int64(3)}))
    assert count(raw)["nn.relu"] == 3
    assert "'steps'" in raw.notes[0]
    assert "3 rounds" in raw.notes[0]


def test_a_loop_over_the_batch_keeps_the_batch_of_the_file(convert, make, count):
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "zero"], ["trips"], axis=0),
        loop([helper.make_node("Relu", ["v"], ["u"])], ["u"]),
    ]
    model = make(nodes, [("x", [2, 8])], [("y", None)], constants={"zero": np.int64(0)})
    raw = convert(model)
    assert (raw.batch, raw.batch_is_symbolic) == (2, False)
    assert count(raw)["nn.relu"] == 2
    assert "each sample" in raw.notes[0]


def test_rounds_that_depend_on_the_data_are_refused(convert, make):
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Cast", ["total"], ["trips"], to=TensorProto.INT64),
        loop([helper.make_node("Relu", ["v"], ["u"])], ["u"]),
    ]
    with pytest.raises(ConversionError, match=r"steps.*rounds"):
        convert(make(nodes, [("x", ["N", 8])], [("y", None)]))


@pytest.mark.nightly(part="frontends")
def test_a_loop_without_end_is_refused(convert, make):
    nodes = [loop([helper.make_node("Relu", ["v"], ["u"])], ["u"], inputs=("", "", "x"))]
    with pytest.raises(ConversionError, match="loops"):
        convert(make(nodes, [("x", ["N", 8])], [("y", None)]))


def test_a_scan_runs_over_its_axis(convert, make, count):
    body = helper.make_graph(
        [
            helper.make_node("Add", ["h", "row"], ["next"]),
            helper.make_node("Tanh", ["next"], ["out"]),
        ],
        "body",
        [value("h", 1, None), value("row", 1, None)],
        [value("next", 1, None), value("out", 1, None)],
    )
    node = helper.make_node("Scan", ["h0", "x"], ["h", "y"], body=body, num_scan_inputs=1)
    inputs = [("h0", ["batch", 8]), ("x", [6, "batch", 8])]
    raw = convert(make([node], inputs, [("h", None), ("y", None)]))
    assert count(raw)["tanh"] == 6
    assert raw.values[raw.outputs[1]].shape == (6, MARKER, 8)


def test_sequences_of_known_length_need_no_operator(convert, make, count):
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "two"], ["third"]),
        helper.make_node("SequenceConstruct", ["third", "third"], ["pair"]),
        helper.make_node("SequenceInsert", ["pair", "third"], ["three"]),
        helper.make_node("ConcatFromSequence", ["three"], ["y"], axis=1),
    ]
    raw = convert(make(nodes, IMAGE, [("y", None)], constants={"two": np.int64(2)}))
    assert raw.values[raw.outputs[0]].shape == (MARKER, 3)
    assert set(count(raw)) == {"strided_slice", "concat"}


def test_a_sequence_of_samples_keeps_the_batch_of_the_file(convert, make):
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0),
        helper.make_node("ConcatFromSequence", ["parts"], ["y"], axis=0),
    ]
    raw = convert(make(nodes, [("x", [2, 8])], [("y", None)]))
    assert (raw.batch, raw.batch_is_symbolic) == (2, False)


def test_text_is_refused(convert, make):
    node = helper.make_node("StringNormalizer", ["x"], ["y"])
    model = make([node], [("x", ["N"], TensorProto.STRING)], [])
    model.graph.output.append(value("y", TensorProto.STRING, None))
    with pytest.raises(ConversionError, match="text") as caught:
        convert(model)
    assert "text" in caught.value.hint


def test_an_unused_mask_of_a_dropout_is_no_result(convert, make, count):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Dropout", ["a"], ["b", "mask"], ratio=0.5),
        helper.make_node("Tanh", ["b"], ["y"]),
    ]
    assert count(convert(make(nodes, IMAGE, [("y", None)], opset=7))) == {"nn.relu": 1, "tanh": 1}
