from __future__ import annotations

from dippm.estimate.features import static_features, wide_static_features
from dippm.estimate.features.encode import WIDE_STATIC_COLUMNS
from dippm.model.graph.model_graph import ModelGraph

from .conftest import Build, node


def test_the_five_of_equation_1_in_order(residual: ModelGraph) -> None:
    macs = sum(n.macs for n in residual.nodes)
    assert static_features(residual).tolist() == [macs, 4, 2, 1, 1]


def test_a_model_without_convolution_or_dense_has_zeros(recurrent: ModelGraph) -> None:
    """The first code raised KeyError."""
    assert static_features(recurrent).tolist() == [0, 2, 0, 0, 0]


def test_macs_are_of_the_named_operators_only(build: Build) -> None:
    ops = ("conv3d", "conv_transpose", "dense", "batch_matmul", "attention", "lstm", "einsum")
    nodes = [node(op, (1, 2), macs=10**i) for i, op in enumerate(ops)]
    assert static_features(build(nodes, [], 1))[0] == 11111


def test_only_relu_counts_as_relu(build: Build) -> None:
    nodes = [node(op, (1, 2)) for op in ("relu", "relu6", "gelu", "relu")]
    assert static_features(build(nodes, [], 1))[4] == 2


def test_wide_features_are_named_and_complete(residual: ModelGraph) -> None:
    wide = wide_static_features(residual)
    assert tuple(wide) == WIDE_STATIC_COLUMNS
    assert wide["operators"] == 6
    assert wide["edges"] == 6
    assert wide["depth"] == 6
    assert wide["max_width"] == 1
    assert wide["count_conv"] == 2
    assert wide["macs_dense"] == 640
    assert wide["param_bytes"] == residual.param_bytes
    assert wide["peak_activation_bytes"] >= 2 * 4 * 4 * 16 * 8 * 8


def test_depth_and_width_follow_the_longest_path(build: Build) -> None:
    nodes = [node("relu", (1, 2)) for _ in range(5)]
    wide = wide_static_features(build(nodes, [(0, 1), (0, 2), (2, 3), (1, 4), (3, 4)], 1))
    assert wide["depth"] == 4
    assert wide["max_width"] == 2
