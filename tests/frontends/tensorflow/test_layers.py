"""One layer, or a few, against arithmetic done by hand."""

from __future__ import annotations

import pytest

from tests.frontends.tensorflow import models
from tests.frontends.tensorflow.counts import histogram, macs

KINDS = pytest.mark.parametrize("kind", models.KINDS)


def only(graph, name):
    return [operator for operator in graph.operators if operator.name == name]


@KINDS
def test_convolutions(kind, converted):
    graph = converted("conv_kinds", kind)
    grouped, depthwise = 8 * 8 * 9 * 2 * 8, 8 * 8 * 9 * 16
    dilated, transposed = 4 * 4 * 9 * 16 * 6, 4 * 4 * 9 * 6 * 5
    assert macs(graph) == grouped + depthwise + dilated + transposed
    first, second, third = only(graph, "nn.conv2d")
    assert first.attributes["groups"] == 2
    assert first.attributes["padding"] == (0, 0, 1, 1)
    assert second.attributes["groups"] == 8
    assert third.attributes["dilation"] == (2, 2)
    assert first.attributes["data_layout"] == "NHWC"


@KINDS
def test_one_dimensional_convolution_stays_one(kind, converted):
    graph = converted("conv1d", kind)
    (conv,) = only(graph, "nn.conv1d")
    assert (conv.attributes["strides"], conv.attributes["groups"]) == ((2,), 2)
    assert macs(graph) == 16 * 3 * 3 * 8
    assert histogram(graph)["reshape"] == histogram(graph)["squeeze"] == 0


def test_dilation_by_blocks_is_one_convolution(converted):
    graph = converted("conv1d_dilated")
    assert macs(graph) == 32 * 3 * 6 * 8
    (conv,) = only(graph, "nn.conv1d")
    assert (conv.attributes["dilation"], conv.attributes["padding"]) == ((2,), (0, 0))
    assert histogram(graph)["permute_dims"] == 0


@KINDS
def test_three_dimensional_convolutions(kind, converted):
    graph = converted("conv3d", kind)
    assert macs(graph) == 8**3 * 27 * 4 * 6 + 8**3 * 8 * 6 * 5
    assert graph.values[graph.outputs[0]].shape[1:] == (16, 16, 16, 5)


@KINDS
def test_normalisations_are_single_operators(kind, converted):
    counts = histogram(converted("norms", kind))
    assert counts["nn.batch_norm"] == 2
    assert counts["nn.layer_norm"] == 2
    assert counts["nn.rms_norm"] == 1
    assert counts["tf.GroupNormalization"] == 1
    assert counts["rsqrt"] == counts["multiply"] == counts["mean"] == 0


@KINDS
def test_activations_have_no_multiplication_by_one(kind, converted):
    counts = histogram(converted("activations", kind))
    assert counts["sigmoid"] == 2
    assert counts["tf.Elu"] == counts["nn.selu"] == counts["nn.softplus"] == counts["tanh"] == 1
    assert counts["tf.Erfc"] == 1
    # silu 1, hard silu 1 + its sixth, hard sigmoid's sixth, gelu 3
    assert counts["multiply"] + counts["divide"] == 7


@KINDS
def test_operators_that_move_data(kind, converted):
    graph = converted("movers", kind)
    assert graph.values[graph.outputs[0]].shape == (graph.batch, 3, 2 * 256)
    assert {"image.resize2d", "permute_dims", "nn.pad", "strided_slice", "tile"} <= set(
        histogram(graph)
    )


@KINDS
def test_a_layer_on_every_step_runs_on_every_step(kind, converted):
    graph = converted("per_step", kind)
    assert histogram(graph)["nn.conv2d"] == 5
    assert macs(graph) == 5 * 6 * 6 * 27 * 4
    starts = [operator.attributes["arg2"] for operator in only(graph, "strided_slice")]
    assert starts == [(0,), (1,), (2,), (3,), (4,)]


def test_batch_is_a_marker_that_scales(converted):
    graph = converted("small")
    assert graph.batch_is_symbolic
    for operator in graph.operators:
        for i in operator.outputs:
            shape = graph.values[i].shape
            assert shape[0] == graph.batch or len(shape) == 1
