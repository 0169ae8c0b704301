"""Operators of ai.onnx.ml around a network are read; what is no network is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.errors import ConversionError, ModelFileError
from dippm.model.graph import build

ROWS = [("x", ["N", 6])]
ML = "ai.onnx.ml"


def ml(operator, inputs, outputs, **attributes):
    return helper.make_node(operator, inputs, outputs, domain=ML, **attributes)


def network(data, result):
    return helper.make_node("Gemm", [data, "w", "b"], [result])


WEIGHTS = {"w": (6, 4), "b": (4,)}
BEFORE = [
    ("Scaler", {"offset": [0.5] * 6, "scale": [2.0] * 6}, ["subtract", "multiply"]),
    ("Scaler", {"scale": [2.0]}, ["multiply"]),
    ("Scaler", {"offset": [0.5]}, ["subtract"]),
    ("Scaler", {}, []),
    ("Imputer", {"imputed_value_floats": [0.0] * 6}, ["is_nan", "where"]),
    ("Normalizer", {}, ["abs", "reduce_max", "divide"]),
    ("Normalizer", {"norm": "L2"}, ["reduce_norm", "divide"]),
    ("Normalizer", {"norm": "L1"}, ["reduce_norm", "divide"]),
    ("Binarizer", {"threshold": 0.5}, ["greater", "cast"]),
]


@pytest.mark.parametrize("opset", [9, 17, 21])
def test_what_stands_before_a_network_is_elementwise(convert, make, opset):
    for operator, attributes, expected in BEFORE:
        nodes = [ml(operator, ["x"], ["s"], **attributes), network("s", "y")]
        raw = convert(make(nodes, ROWS, [("y", None)], weights=WEIGHTS, opset=opset, domains=[ML]))
        graph = build(raw).at_batch(3)
        assert not graph.unknown_ops, operator
        assert [node.op for node in graph.nodes][: len(expected)] == expected
        assert graph.macs == 3 * 6 * 4


def test_whole_numbers_are_scaled_as_floats(convert, make):
    nodes = [ml("Scaler", ["x"], ["s"], offset=[1.0], scale=[2.0]), network("s", "y")]
    inputs = [("x", ["N", 6], TensorProto.INT64)]
    graph = build(convert(make(nodes, inputs, [("y", None)], weights=WEIGHTS, domains=[ML])))
    assert graph.at_batch(2).nodes[0].op == "cast"
    assert not graph.unknown_ops


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [0, 1, 2, 3]},
                                    {"classlabels_strings": list("abcd")}])  # fmt: skip
def test_labels_behind_a_network(convert, make, labels):
    """As scikit-learn's converter writes a classifier: probabilities as maps, the best label."""
    table = np.arange(4) if "classlabels_int64s" in labels else np.asarray(list("abcd"), object)
    nodes = [
        network("x", "scores"),
        ml("ZipMap", ["scores"], ["maps"], **labels),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1),
        ml("ArrayFeatureExtractor", ["table", "best"], ["row"]),
        helper.make_node("Reshape", ["row", "flat"], ["label"]),
    ]
    outputs = [("label", None), ("maps", None)]
    constants = {"table": table, "flat": np.asarray([-1])}
    raw = convert(make(nodes, ROWS, outputs, weights=WEIGHTS, constants=constants, domains=[ML]))
    graph = build(raw).at_batch(3)
    assert not graph.unknown_ops
    assert graph.macs == 3 * 6 * 4
    assert [raw.values[i].shape[-1] for i in raw.outputs] == [raw.batch, 4]


def test_linear_models_are_a_product(convert, make):
    regressor = ml(
        "LinearRegressor", ["x"], ["y"], targets=2, coefficients=[0.5] * 12, intercepts=[0.1, 0.2]
    )
    graph = build(convert(make([regressor], ROWS, [("y", None)], domains=[ML])))
    assert graph.at_batch(5).macs == 5 * 6 * 2
    assert graph.param_bytes == 4 * (12 + 2)
    many = ml("LinearRegressor", ["x"], ["y"], targets=10**9, coefficients=[0.5] * 12)
    with pytest.raises(ModelFileError, match="do not fit its coefficients"):
        convert(make([many], ROWS, [("y", None)], domains=[ML]))
    classifier = ml(
        "LinearClassifier", ["x"], ["label", "y"], coefficients=[0.5] * 18, intercepts=[0.1] * 3,
        classlabels_ints=[0, 1, 2], post_transform="SOFTMAX",
    )  # fmt: skip
    graph = build(convert(make([classifier], ROWS, [("y", None)], domains=[ML])))
    assert graph.at_batch(5).macs == 5 * 6 * 3
    assert graph.histogram()["softmax"] == 1


def test_encoders(convert, make):
    nodes = [
        ml("OneHotEncoder", ["x"], ["hot"], cats_int64s=[0, 1, 2]),
        helper.make_node("Reshape", ["hot", "flat"], ["wide"]),
        ml("FeatureVectorizer", ["wide", "wide"], ["y"], inputdimensions=[18, 18]),
    ]
    constants = {"flat": np.asarray([0, 18])}
    raw = convert(make(nodes, ROWS, [("y", None)], constants=constants, domains=[ML]))
    assert raw.values[raw.outputs[0]].shape == (raw.batch, 36)
    assert not build(raw).unknown_ops


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("TreeEnsembleClassifier", "decision trees"),
        ("TreeEnsembleRegressor", "decision trees"),
        ("SVMClassifier", "support vector"),
        ("SVMRegressor", "support vector"),
    ],
)
def test_what_is_no_network_is_named(convert, make, operator, words):
    node = ml(operator, ["x"], ["y"])
    with pytest.raises(ConversionError, match=words) as caught:
        convert(make([node], ROWS, [("y", None)], domains=[ML]))
    assert operator in caught.value.message
    assert "network" in caught.value.hint
