"""The same regressions on models that went through the real importer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dippm.estimate.features import adjacency, encode, node_features, static_features
from dippm.estimate.features.encode import FIRST_ATTRIBUTE
from dippm.model.frontends import InputSpec, load
from dippm.model.graph import ModelGraph, build


class Residual(nn.Module):
    """A residual block with pooling and no dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return nn.functional.max_pool2d(y + self.second(torch.relu(y)), 2)


class Text(nn.Module):
    """A recurrent layer: its input has two dimensions, and it has no convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


@pytest.fixture(scope="module")
def residual() -> ModelGraph:
    raw = load(Residual().eval(), InputSpec.parse("3,16,16"), cache=False)
    return build(raw).at_batch(4)


@pytest.fixture(scope="module")
def text() -> ModelGraph:
    return build(load(Text().eval(), InputSpec.parse("12,16"), cache=False)).at_batch(4)


def test_residual_add_activation_and_pool_are_nodes(residual: ModelGraph) -> None:
    ops = [node.op for node in residual.nodes]
    assert {"conv2d", "relu", "add", "max_pool"} <= set(ops)
    add = ops.index("add")
    assert adjacency(residual).to_dense()[:, add].sum() == 2


def test_static_features_of_a_model_without_dense(residual: ModelGraph) -> None:
    macs = 4 * 16 * 16 * 8 * 9 * (3 + 8)
    assert static_features(residual).tolist() == [macs, 4, 2, 0, 1]


def test_static_features_of_a_model_without_convolution(text: ModelGraph) -> None:
    batch, convs, denses = static_features(text)[1:4].tolist()
    assert (batch, convs, denses) == (4, 0, 0)


def test_nothing_real_is_unknown(residual: ModelGraph, text: ModelGraph) -> None:
    for graph in (residual, text):
        x = node_features(graph)
        assert x[:, :FIRST_ATTRIBUTE].sum(1).eq(1).all()
        assert x[:, 0].sum() == 0


def test_only_shapes_follow_the_batch(residual: ModelGraph) -> None:
    small, large = encode(residual), encode(residual.at_batch(64))
    assert torch.equal(small.edge_index, large.edge_index)
    assert torch.equal(small.x[:, :FIRST_ATTRIBUTE], large.x[:, :FIRST_ATTRIBUTE])
    assert not torch.equal(small.x, large.x)
