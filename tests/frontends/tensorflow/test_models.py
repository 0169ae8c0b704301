"""Whole networks: what they cost, and that every kind of file gives one graph."""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest

from tests.frontends.tensorflow import models
from tests.frontends.tensorflow.counts import histogram, macs, parameter_count, read

# Keras' ResNet50 strides in its 1 x 1 convolutions: 3.858 GMACs where torchvision's has 4.089.
# DenseNet121 is held against torch's in `test_parity.py`.
ZOO = {
    "MobileNetV2": (0.301e9, {"nn.conv2d": 52, "nn.batch_norm": 52, "clip": 35}),
    "ResNet50": (3.858e9, {"nn.conv2d": 53, "nn.batch_norm": 53, "nn.relu": 49}),
    "EfficientNetB0": (0.386e9, {"nn.conv2d": 81, "nn.batch_norm": 49, "sigmoid": 65}),
    "VGG16": (15.470e9, {"nn.conv2d": 13, "matmul": 3, "nn.max_pool2d": 5}),
    "ConvNeXtTiny": (4.455e9, {"nn.conv2d": 22, "nn.layer_norm": 23, "matmul": 37}),
}
PARAMETERS = {"VGG16": 138_357_544, "MobileNetV2": 3_538_984, "ResNet50": 25_636_712}


def unnamed(graph):
    """Return the operators without the names of their layers, which a SavedModel counts anew."""
    return [replace(operator, path="") for operator in graph.operators]


@pytest.mark.nightly(part="zoo")
@pytest.mark.parametrize("name", ZOO)
def test_every_file_of_a_network_costs_the_same(name, files, child):
    paths = files(name, tuple(models.KINDS))
    graphs = [read(child(models.convert, paths[kind])) for kind in models.KINDS]
    expected_macs, expected_counts = ZOO[name]
    for graph in graphs:
        assert macs(graph) == pytest.approx(expected_macs, rel=0.002)
        assert {op: histogram(graph)[op] for op in expected_counts} == expected_counts
        assert unnamed(graph) == unnamed(graphs[0])
        assert parameter_count(graph) == PARAMETERS.get(name, parameter_count(graphs[0]))


@pytest.mark.nightly(part="zoo")
def test_vgg16_savedmodel_converts_in_a_small_process(files):
    path = files("VGG16", ("savedmodel",))["savedmodel"]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        result, peak_mb = pool.submit(models.convert_measured, path).result()
    assert macs(read(result)) == pytest.approx(15.470e9, rel=0.001)
    assert peak_mb < 2048


@pytest.mark.parametrize("kind", models.KINDS)
def test_unet_on_seventeen_channels(kind, converted):
    graph = converted("_unet"[1:], kind)
    convolutions = {
        512 * 512: 9 * 17 * 16 + 9 * 32 * 16 + 16,
        256 * 256: 9 * 16 * 32 + 9 * 64 * 32,
        128 * 128: 9 * 32 * 64,
    }
    transposed = 128 * 128 * 4 * 64 * 32 + 256 * 256 * 4 * 32 * 16
    expected = sum(pixels * weights for pixels, weights in convolutions.items()) + transposed
    assert macs(graph) == expected
    assert graph.values[graph.inputs[0]].shape == (graph.batch, 512, 512, 17)


def test_attention_is_made_of_matrix_products(converted):
    graph = converted("attention")
    projections, scores, output = 4 * 12 * 64 * 64, 2 * 12 * 12 * 64, 12 * 64 * 64
    assert macs(graph) == projections + scores + output
    assert histogram(graph)["matmul"] == 7
    assert histogram(graph)["nn.layer_norm"] == 1


@pytest.mark.parametrize("kind", models.KINDS)
def test_graph_does_not_depend_on_weight_values(kind, child, tmp_path):
    graphs = []
    for value in (0.0, 1.0, 0.37):
        folder = tmp_path / str(value)
        folder.mkdir()
        path = child(models.save_with_weights, folder, value)[kind]
        graphs.append(read(child(models.convert, path)))
    assert graphs[0].operators == graphs[1].operators == graphs[2].operators
    assert [v.shape for v in graphs[0].values] == [v.shape for v in graphs[2].values]


def test_weights_are_never_constants(converted):
    graph = converted("small")
    shapes = [v.shape for v in graph.values if v.kind == "parameter"]
    assert (3, 3, 3, 8) in shapes
    assert (8, 5) in shapes
    assert not [v for v in graph.values if v.kind == "constant" and len(v.shape) > 1]


def test_a_worker_knows_in_which_layer_it_is(files, child):
    places = child(models.places_while_called, files("small")["keras"])
    assert places
    assert all(re.match(r", in dense\w* \(Dense\), line \d+ of models\.py", p) for p in places)
