"""Layers whose result nobody reads: eager mode runs them, whatever the exporter makes of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dippm.model import frontends
from dippm.model.graph import build


class Unread(nn.Module):
    """A layer in a region of its own and a recurrent one are not read, and memory is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.unread = nn.Linear(8, 8), nn.Linear(8, 16)
        self.recurrent = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.kept(x)
        y[:, :2] = x[:, :2]
        with torch.autocast("cuda", enabled=False):
            torch.relu(self.unread(y))
        self.recurrent(x)
        return y


def test_unread_layers_survive_regions_and_shared_memory() -> None:
    graph = build(frontends.load(Unread(), (5, 8), cache=False)).at_batch(1)
    module = Unread()
    module.recurrent = nn.Identity()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(1, 5, 8))
    recurrent = 5 * 4 * 4 * (8 + 4)
    assert graph.macs == counter.get_total_flops() // 2 + recurrent
    assert {"relu", "lstm"} <= {node.op for node in graph.nodes}


class Sizes(nn.Module):
    """Takes a size for a branch that is not taken, and writes into a part of a tensor."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(8, 8), shift

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        samples = y.size(0)
        if self.shift > 0:
            y = torch.roll(y, self.shift, 1).view(samples, 5, 8)
        y[:, :2] = x[:, :2]
        return y


def test_unread_sizes_of_a_script_are_no_work() -> None:
    scripted = torch.jit.script(Sizes(0))
    graph = build(frontends.load(scripted, (5, 8), cache=False)).at_batch(2)
    assert graph.outputs[0].shape == (2, 5, 8)
