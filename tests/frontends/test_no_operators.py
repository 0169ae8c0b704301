"""A model that hands its inputs on, or knows its results beforehand, runs nothing."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from torch import nn

import dippm
from dippm.model.graph.builder import NO_OPERATORS
from dippm.model.graph.model_graph import ModelGraph

NODES = {
    "identity": helper.make_node("Identity", ["x"], ["y"]),
    "dropout": helper.make_node("Dropout", ["x"], ["y"]),
    "sizes": helper.make_node("Shape", ["x"], ["y"]),
}
RESULTS = {"identity": (2, 3), "dropout": (2, 3), "sizes": (2,)}


def read(folder: Path, node: onnx.NodeProto) -> ModelGraph:
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    result = helper.make_empty_tensor_value_info("y")
    path = folder / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", [taken], [result])), path)
    return dippm.read_graph(path)


@pytest.mark.parametrize("name", NODES)
def test_an_onnx_file_without_work(tmp_path: Path, name: str) -> None:
    graph = read(tmp_path, NODES[name])
    if graph.batch_is_symbolic:
        graph = graph.at_batch(2)
    assert graph.nodes == ()
    assert graph.macs == 0
    assert tuple(tensor.shape for tensor in graph.outputs) == (RESULTS[name],)
    assert NO_OPERATORS in graph.notes


def test_its_prediction_warns_and_gives_no_latency(tmp_path: Path) -> None:
    answer = dippm.predict(read(tmp_path, NODES["identity"]), device="a100-40gb")
    assert answer.latency_ms is None
    assert answer.absent["latency_ms"]
    assert NO_OPERATORS in answer.warnings


def test_a_module_that_returns_its_input() -> None:
    graph = dippm.read_graph(nn.Identity(), input="4")
    assert graph.nodes == ()
    assert graph.outputs[0].shape == graph.inputs[0].shape
    assert NO_OPERATORS in graph.notes


def test_a_model_with_operators_is_not_said_to_have_none() -> None:
    assert NO_OPERATORS not in dippm.read_graph(nn.ReLU(), input="4").notes
