"""Recurrent cells written by hand, in a loop over time, as users write them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dippm.model.frontends import load
from dippm.model.graph import build

STEPS, CHANNELS, HIDDEN, SIZE = 5, 3, 4, 8


class ConvLSTMCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(CHANNELS + HIDDEN, 4 * HIDDEN, 3, padding=1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class ConvLSTM(nn.Module):
    """Takes (batch, steps, channels, height, width)."""

    def __init__(self, *, steps_first: bool = False) -> None:
        super().__init__()
        self.cell, self.axis = ConvLSTMCell(), 0 if steps_first else 1

    def forward(self, x: Tensor) -> Tensor:
        frames = x.unbind(self.axis)
        h = torch.zeros(frames[0].shape[0], HIDDEN, *x.shape[-2:], device=x.device)
        c = torch.zeros_like(h)
        results = []
        for frame in frames:
            h, c = self.cell(frame, (h, c))
            results.append(h)
        return torch.stack(results, self.axis)


@pytest.mark.parametrize("steps_first", [False, True])
def test_a_convolution_in_each_step(steps_first: bool) -> None:
    sizes = f"{CHANNELS},{SIZE},{SIZE}"
    given = f"{STEPS},N,{sizes}" if steps_first else f"{STEPS},{sizes}"
    graph = build(load(ConvLSTM(steps_first=steps_first), given)).at_batch(2)
    assert graph.histogram()["conv2d"] == STEPS
    assert graph.macs == 2 * STEPS * SIZE**2 * 9 * (CHANNELS + HIDDEN) * 4 * HIDDEN
    assert graph.unknown_ops == {}
    assert graph.notes == ()
