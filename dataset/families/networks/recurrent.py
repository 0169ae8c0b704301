"""Recurrent networks over text, series and the levels of an air column."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dataset.families.networks.layers import Mlp

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Recurrent(nn.Module):
    """A stack of recurrent layers over tokens (vocabulary > 0) or series; last state → classes."""

    def __init__(
        self,
        *,
        cell: str,
        features: int,
        vocabulary: int,
        width: int,
        depth: int,
        bidirectional: bool,
        output: str,
    ):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, features) if vocabulary else None
        self.layers = CELLS[cell](
            features, width, depth, batch_first=True, bidirectional=bidirectional
        )
        states = width * (1 + bidirectional)
        self.output = output
        self.head = nn.Linear(states, (vocabulary or features) if output == "sequence" else 16)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        states, _ = self.layers(x if self.embed is None else self.embed(x))
        return self.head(states if self.output == "sequence" else states[:, -1])


class ColumnEmulator(nn.Module):
    """Physics of one column: profiles over levels and surface values → tendencies.

    A first pass runs upwards from the surface values, a second downwards over its states, because
    radiation and moisture propagate both ways.
    """

    def __init__(
        self,
        *,
        cell: str,
        profiles: int,
        surface: int,
        width: int,
        depth: int,
        mlp: int,
        outputs: int,
        two_way: bool,
    ):
        super().__init__()
        self.start = nn.Linear(surface, width)
        self.embed = nn.Linear(profiles, width)
        self.up = CELLS[cell](width, width, depth, batch_first=True)
        self.down = CELLS[cell](width, width, depth, batch_first=True) if two_way else None
        self.mlp = Mlp(width, mlp, act="relu") if mlp else nn.Identity()
        self.head = nn.Linear(width, outputs)

    def forward(self, profiles: Tensor, surface: Tensor) -> Tensor:  # noqa: D102
        x = torch.relu(self.embed(profiles)) + torch.tanh(self.start(surface))[:, None]
        x, _ = self.up(x)
        if self.down is not None:
            x, _ = self.down(x.flip(1))
            x = x.flip(1)
        return self.head(self.mlp(x))
