from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dippm.estimate.features import adjacency, node_features
from dippm.estimate.features.encode import (
    CLASS_OF_OPERATOR,
    FIRST_ATTRIBUTE,
    FIRST_SHAPE,
    NODE_COLUMNS,
    OPERATOR_CLASSES,
)
from dippm.model.graph.model_graph import ModelGraph
from dippm.model.graph.operators import OPERATORS

from .conftest import Build, conv, node


def column(name: str) -> int:
    return NODE_COLUMNS.index(name)


def test_a_row_is_32_wide_and_finite(residual: ModelGraph) -> None:
    x = node_features(residual)
    assert x.shape == (6, 32)
    assert x.dtype == torch.float32
    assert x.isfinite().all()


def test_every_operator_of_the_table_has_a_class() -> None:
    assert set(CLASS_OF_OPERATOR) == set(OPERATORS)


def test_every_class_fits_the_one_hot(build: Build) -> None:
    """The first code's one-hot raised IndexError on its last operator, max pooling."""
    nodes = [node(op, (1, 2)) for op in CLASS_OF_OPERATOR]
    one_hot = node_features(build(nodes, [], 1))[:, :FIRST_ATTRIBUTE]
    assert one_hot.sum(1).eq(1).all()
    assert one_hot.sum(0)[1:].gt(0).all()


def test_an_unknown_operator_keeps_its_row(build: Build) -> None:
    x = node_features(build([node("relu", (1, 2)), node("frobnicate", (1, 2))], [(0, 1)], 1))
    assert x[1, column("is_unknown")] == 1
    assert x[0, column("is_unknown")] == 0


def test_operators_without_weights_are_kept(residual: ModelGraph) -> None:
    """The first code dropped residual adds, activations and pools."""
    classes = node_features(residual)[:, :FIRST_ATTRIBUTE].argmax(1)
    names = [OPERATOR_CLASSES[i] for i in classes]
    assert names == ["conv", "activation", "conv", "elementwise", "pool", "dense"]


def test_the_shape_is_the_output_not_the_weight(residual: ModelGraph) -> None:
    shape = node_features(residual)[0, FIRST_SHAPE:].expm1()
    assert shape.tolist() == pytest.approx([4, 16, 8, 8, 0, 4 * 16 * 8 * 8], rel=1e-4)


def test_resolution_changes_a_convolution_row(build: Build) -> None:
    small = node_features(build([conv((1, 8, 8, 8), (1, 3, 8, 8))], [], 1))
    large = node_features(build([conv((1, 8, 32, 32), (1, 3, 32, 32))], [], 1))
    assert not torch.equal(small, large)


@pytest.mark.parametrize("rank", range(7))
def test_outputs_of_any_rank_are_encoded(build: Build, rank: int) -> None:
    """The first code took 3-D inputs only."""
    shape = tuple(range(2, 2 + rank))
    row = node_features(build([node("relu", shape)], [], 1))[0]
    assert row[column("elements")].expm1() == pytest.approx(math.prod(shape), rel=1e-4)


def test_attributes_of_a_convolution(build: Build) -> None:
    row = node_features(build([conv((2, 8, 9, 9), (2, 4, 9, 9), kernel=(5, 3))], [], 2))[0]
    expected = {
        "kernel_height": 5,
        "kernel_width": 3,
        "stride_height": 1,
        "padding_total": 4,
        "dilation": 1,
        "groups": 1,
        "contraction": 4 * 15,
        "parameters": 8 * 4 * 15,
        "input_elements": 2 * 4 * 81,
    }
    for name, value in expected.items():
        assert row[column(name)].expm1() == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize(
    ("kernel", "height", "width"), [((7,), 1, 7), ((2, 3), 2, 3), ((1, 2, 3), 2, 3), (4, 4, 4)]
)
def test_kernels_of_any_rank(
    build: Build, kernel: int | tuple[int, ...], height: int, width: int
) -> None:
    row = node_features(build([node("max_pool", (1, 2), kernel=kernel)], [], 1))[0]
    assert row[column("kernel_height")].expm1() == pytest.approx(height)
    assert row[column("kernel_width")].expm1() == pytest.approx(width)


def test_dense_rows_differ_with_their_sizes(build: Build) -> None:
    """The first code gave attributes to conv2d only."""

    def dense(k: int) -> torch.Tensor:
        return node_features(build([node("dense", (2, 10), macs=20 * k, in_features=k)], [], 2))

    assert not torch.equal(dense(16), dense(32))


def test_huge_sizes_stay_sane(build: Build) -> None:
    x = node_features(build([node("relu", (10**6, 10**6), inputs=((10**6, 10**6),))], [], 10**6))
    assert x.max() < 64


def test_adjacency_is_the_data_flow_not_a_chain(residual: ModelGraph) -> None:
    a = adjacency(residual)
    assert a.is_sparse
    dense = a.to_dense()
    assert dense[0, 3] == 1, "the residual branch"
    assert dense[2, 3] == 1
    assert dense[4, 3] == 0
    assert dense.sum() == len(residual.edges)
    assert torch.equal(dense, dense.triu(1)), "producers come before consumers"


def test_adjacency_without_edges(build: Build) -> None:
    assert adjacency(build([node("relu", (1, 2))], [], 1)).to_dense().tolist() == [[0.0]]


def test_features_do_not_depend_on_what_was_absorbed(residual: ModelGraph) -> None:
    first = replace(residual.nodes[0], absorbed=("batch_norm",))
    other = replace(residual, nodes=(first, *residual.nodes[1:]))
    assert torch.equal(node_features(residual), node_features(other))
