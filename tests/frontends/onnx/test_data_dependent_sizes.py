"""Sizes that depend on data: stated as their bounds where boxes are selected or at the end."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dippm.errors import ConversionError
from dippm.model.graph import build

IMAGE = [("x", ["N", 3, 8, 8])]
WEIGHTS = {"w": (6, 3, 3, 3), "dense": (6, 5)}


def detector(limit):
    """A detector with one class: 36 candidates, then as many boxes as the suppression keeps."""
    return [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Reshape", ["c", "flat"], ["f"]),
        helper.make_node("Split", ["f", "sizes"], ["scores", "wide"], axis=1),
        helper.make_node("Split", ["wide", "parts"], ["b", "rest"], axis=1),
        helper.make_node("Transpose", ["b"], ["boxes"], perm=[0, 2, 1]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", *limit], ["kept"]),
    ]


CONSTANTS = {
    "flat": np.asarray([0, 6, 36]), "sizes": np.asarray([1, 5]), "parts": np.asarray([4, 1]),
    "limit": np.asarray([10]), "none": np.asarray([0]), "endless": np.asarray([1 << 62]),
    "axis": np.int64(0), "rows": np.asarray([-1]),
}  # fmt: skip


@pytest.mark.parametrize(("limit", "boxes"), [("limit", 10), ("endless", 36)])
def test_a_suppression_keeps_what_its_limit_says(convert, make, limit, boxes):
    raw = convert(
        make(detector([limit]), IMAGE, [("kept", None)], weights=WEIGHTS, constants=CONSTANTS)
    )
    assert raw.values[raw.outputs[0]].shape == (raw.batch * boxes, 3)
    assert any("upper bound" in note and "NonMaxSuppression" in note for note in raw.notes)
    assert build(raw).at_batch(2).macs == 2 * 36 * 27 * 6


@pytest.mark.parametrize("limit", [[], ["none"]])
def test_a_suppression_without_a_limit_keeps_nothing(convert, make, limit):
    nodes = detector(limit)
    with pytest.raises(ConversionError, match="max_output_boxes_per_class"):
        convert(make(nodes, IMAGE, [("kept", None)], weights=WEIGHTS, constants=CONSTANTS))


def selection(operator, *more):
    """Positions above zero in what a layer gives."""
    return [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Reshape", ["c", "flat"], ["f"]),
        helper.make_node("Greater", ["f", "zero"], ["mask"]),
        *more,
        helper.make_node("NonZero", ["mask"], ["places"]),
    ]


def test_a_selection_after_the_last_layer_is_all_of_it(convert, make):
    constants = CONSTANTS | {"zero": np.float32(0)}
    raw = convert(
        make(selection("NonZero"), IMAGE, [("places", None)], weights=WEIGHTS, constants=constants)
    )
    assert raw.values[raw.outputs[0]].shape == (3, raw.batch * 216)
    assert any("upper bound" in note and "NonZero" in note for note in raw.notes)


def test_a_selection_before_a_layer_is_refused(convert, make):
    """As a mixture of experts: each would get all tokens."""
    nodes = [
        *selection("NonZero"),
        helper.make_node("Transpose", ["places"], ["index"]),
        helper.make_node("GatherND", ["f", "index"], ["chosen"]),
        helper.make_node("Reshape", ["chosen", "six"], ["rows6"]),
        helper.make_node("MatMul", ["rows6", "dense"], ["y"]),
    ]
    constants = CONSTANTS | {"zero": np.float32(0), "six": np.asarray([-1, 6])}
    with pytest.raises(ConversionError, match=r"NonZero.*depends on the data"):
        convert(make(nodes, IMAGE, [("y", None)], weights=WEIGHTS, constants=constants))


def test_writing_at_places_leaves_the_size_as_it_is(convert, make):
    """`x[x > 0] = value`: the layers behind it work on the whole."""
    nodes = [
        *selection("NonZero"),
        helper.make_node("Transpose", ["places"], ["index"]),
        helper.make_node("GatherND", ["f", "index"], ["updates"]),
        helper.make_node("ScatterND", ["f", "index", "updates"], ["g"]),
        helper.make_node("Transpose", ["g"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "dense"], ["y"]),
    ]
    constants = CONSTANTS | {"zero": np.float32(0)}
    raw = convert(make(nodes, IMAGE, [("y", None)], weights=WEIGHTS, constants=constants))
    assert build(raw).at_batch(2).macs == 2 * 36 * (27 * 6 + 6 * 5)


@pytest.mark.parametrize("onesided", [None, 1, 0])
def test_attributes_left_out_have_their_defaults(convert, make, onesided):
    """ONNX's own inference takes STFT without `onesided` for the two-sided one."""
    given = {} if onesided is None else {"onesided": onesided}
    nodes = [helper.make_node("STFT", ["x", "step", "window"], ["y"], **given)]
    constants = {"step": np.int64(8), "window": np.ones(16, np.float32)}
    raw = convert(make(nodes, [("x", ["N", 128, 1])], [("y", None)], constants=constants))
    assert raw.values[raw.outputs[0]].shape == (raw.batch, 15, 16 if onesided == 0 else 9, 2)


@pytest.mark.parametrize(
    ("operator", "canonical"),
    [("ReduceSumSquare", "reduce_norm"), ("ReduceLogSum", "reduce_logsumexp")],
)
def test_reductions_with_two_steps_are_known(convert, make, operator, canonical):
    node = helper.make_node(operator, ["x"], ["y"], axes=[1], keepdims=0)
    graph = build(convert(make([node], IMAGE, [("y", None)])))
    assert not graph.unknown_ops
    assert graph.nodes[0].op == canonical
    assert graph.nodes[0].attributes["axes"] == (1,)
