"""Tensors that a model makes without a device, and masks whose data its layers ask for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dippm.model.frontends import pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.graph import build


class Places(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(10, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.words(x) + torch.arange(16.0))


class Numpy(Places):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.words(x) + torch.from_numpy(np.ones(16, "float32")))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x, mask=self.mask)


@pytest.mark.parametrize("module", [Places(), Numpy()])
def test_tensors_without_a_device_beside_tokens(module):
    graph = build(pytorch.convert_module(module.eval(), InputSpec.parse("8")))
    assert graph.inputs[0].dtype == "int64"
    assert graph.at_batch(1).macs == 8 * 16 * 16


def test_a_mask_that_a_layer_looks_at():
    graph = build(pytorch.convert_module(Encoder().eval(), InputSpec.parse("6,16")))
    assert graph.at_batch(1).macs == 6 * 16 * (4 * 16 + 2 * 32) + 2 * 6 * 6 * 16
