"""The decoder of Whisper (Radford et al. 2022), one token at a time.

The keys and values of the audio are computed once per clip (`HeardKeys`); each step then reads them
and those of the tokens so far.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, POSITIONS = 51_865, 448


class HeardKeys(nn.Module):
    """States of a clip (batch, frames, width) → keys and values of every layer."""

    def __init__(self, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.keys = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.values = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        keys = torch.stack([key(states) for key in self.keys], 1)
        return keys, torch.stack([value(states) for value in self.values], 1)


class DecoderStep(nn.Module):
    """One decoding step.

    Takes the last token (batch, 1), keys and values of the tokens so far (batch, layers, tokens,
    width) and those of the audio (batch, layers, frames, width); returns scores of all words, and
    keys and values with one more token.
    """

    def __init__(self, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(  # noqa: D102
        self,
        token: Tensor,
        keys: Tensor,
        values: Tensor,
        heard_keys: Tensor,
        heard_values: Tensor,
    ) -> tuple[Tensor, ...]:
        token = token.long()
        place = torch.full_like(token, keys.shape[2])
        x = self.words(token) + self.positions(place)
        kept = []
        for i, layer in enumerate(self.layers):
            heard = (heard_keys[:, i], heard_values[:, i])
            x, key, value = layer(x, keys[:, i], values[:, i], heard)
            kept += [key, value]
        scores = functional.linear(self.norm(x), self.words.weight)
        return scores, *kept


class DecoderLayer(nn.Module):
    """Self-attention to the text so far, cross-attention to the audio, an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.heard_query, self.heard_out = nn.Linear(width, width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(  # noqa: D102
        self, x: Tensor, keys: Tensor, values: Tensor, heard: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        y = self.norms[0](x)
        keys = torch.cat([keys, self.key(y)], 1)
        values = torch.cat([values, self.value(y)], 1)
        x = x + self.out(self._attended(self.query(y), keys, values))
        x = x + self.heard_out(self._attended(self.heard_query(self.norms[1](x)), *heard))
        return x + self.mlp(self.norms[2](x)), keys, values

    def _attended(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        parts = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, keys, values)
        )
        return functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
