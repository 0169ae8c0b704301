"""Files that both exporters of PyTorch wrote for one batch get any other, with equal work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dippm.model.graph
from dippm.model.frontends import onnx as route
from dippm.model.frontends.frontend import InputSpec

pytestmark = pytest.mark.nightly(part="zoo")


class Residual(nn.Module):
    """A convolution net that flattens with the batch that it sees."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.a(x))
        x = nn.functional.max_pool2d(x + self.b(x), 4)
        return self.last(x.view(x.shape[0], -1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.last = kind(8, 16, num_layers=2, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.layer(x)[0][:, -1])


class Patches(nn.Module):
    """A small vision transformer: a class token, attention, positions."""

    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(3, 32, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        self.places = nn.Parameter(torch.zeros(1, 17, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.last(self.block(x)[:, 0])


class Heads(nn.Module):
    """Attention written by hand with the sizes that it sees."""

    def __init__(self):
        super().__init__()
        self.pack, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        n, steps, width = x.shape
        q, k, v = self.pack(x).view(n, steps, 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1)
        return self.out((scores @ v).transpose(1, 2).reshape(n, steps, width))


MODELS = {
    "residual": (Residual, (3, 16, 16)),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 8)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 8)),
    "patches": (Patches, (3, 16, 16)),
    "heads": (Heads, (6, 32)),
}


def graph(path, batch):
    raw = route.load(path, InputSpec({}))
    assert raw.batch_is_symbolic, raw.notes
    return dippm.model.graph.build(raw).at_batch(batch)


EXPORTERS = ["script", "dynamo"]
ALL = [(name, 1) for name in MODELS] + [(name, 2) for name in MODELS if name != "patches"]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("name", "fixed"), ALL)
def test_a_file_of_one_batch_serves_every_batch(export, name, exporter, fixed):
    make, shape = MODELS[name]
    module = make()
    path = export(module, (torch.zeros(fixed, *shape),), exporter=exporter, is_dynamic=False)
    free = export(module, (torch.zeros(2, *shape),), exporter=exporter)
    found, wanted = graph(path, 8), graph(free, 8)
    assert [t.shape for t in found.outputs] == [t.shape for t in wanted.outputs]
    assert found.macs == wanted.macs
    products = ("conv2d", "dense", "batch_matmul", "attention", "lstm", "gru")
    assert [found.histogram().get(op) for op in products] == [
        wanted.histogram().get(op) for op in products
    ]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_constant_for_each_of_two_samples_keeps_the_batch(export, exporter):
    """Whether the two rows of the token are equal stands in weights, which are not read."""
    path = export(Patches(), (torch.zeros(2, 3, 16, 16),), exporter=exporter, is_dynamic=False)
    raw = route.load(path, InputSpec({}))
    assert (raw.batch, raw.batch_is_symbolic) == (2, False)
    assert "batch 2 only" in raw.notes[0]
    assert "Concat" in raw.notes[0]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("batch", [1, 3])
def test_time_steps_in_front_are_found(export, exporter, batch):
    layer = nn.LSTM(8, 16)
    path = export(layer, (torch.zeros(7, batch, 8),), exporter=exporter, is_dynamic=False)
    raw = route.load(path, InputSpec({}))
    assert [raw.values[i].shape for i in raw.inputs] == [(7, 1009, 8)]
    assert dippm.model.graph.build(raw).at_batch(1).macs == 7 * 4 * 16 * (8 + 16)
