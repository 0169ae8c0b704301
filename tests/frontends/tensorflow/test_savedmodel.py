"""SavedModel folders that Keras did not write."""

from __future__ import annotations

import pytest

from tests.frontends.tensorflow import models
from tests.frontends.tensorflow.counts import histogram, macs, parameter_count, read


@pytest.mark.parametrize("resource", [False, True])
def test_graph_of_the_first_generation(resource, child, tmp_path):
    path = child(models.save_first_generation, tmp_path / "model", resource)
    graph = read(child(models.convert, path))
    assert macs(graph) == 64 * 27 * 4 + 256 * 5
    assert parameter_count(graph) == 27 * 4 + 256 * 5
    assert graph.values[graph.inputs[0]].name == "x"


@pytest.fixture(scope="module")
def text_model(child, tmp_path_factory):
    return child(models.save_text_model, tmp_path_factory.mktemp("text") / "model")


def test_operators_beside_keras(text_model, child):
    graph = read(child(models.convert, text_model))
    counts = histogram(graph)
    once = 12 * 16 * 16  # before, in the branch, and in each of three steps
    assert macs(graph) == (1 + 1 + 3) * once + 2 * 12 * 12 * 16
    assert counts["take"] == counts["nn.layer_norm"] == counts["topk"] == 1
    assert [graph.values[i].name for i in graph.inputs] == ["ids", "mask"]
    assert [graph.values[i].shape[1:] for i in graph.outputs] == [(16,), (12, 2)]


def test_control_flow_is_written_out(text_model, child):
    graph = read(child(models.convert, text_model))
    assert not {o.name for o in graph.operators} & {"tf.If", "tf.While"}
    assert graph.notes == ("data decide which of 2 branches of cond runs: the costliest was read",)


def test_sizes_by_name(text_model, child):
    graph = read(child(models.convert, text_model, {"ids": (12,), "mask": (12,)}))
    assert [graph.values[i].dtype for i in graph.inputs] == ["int32", "int32"]


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_graphs_raise_our_errors_only(seed, text_model, child, tmp_path):
    assert child(models.convert_damaged, text_model, tmp_path, seed) == []
