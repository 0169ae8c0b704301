"""Small networks that files hold in float32, half, bfloat16 or double."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Cnn(nn.Module):
    """Convolutions of one to three dimensions, norms, pools, activations in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8))
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.volume = nn.GroupNorm(2, 8), nn.Conv3d(1, 2, 3, padding=1)
        self.line = nn.Conv1d(8, 4, 3)
        self.head = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        x = x + self.norm(functional.silu(self.deep(x)))
        x = self.volume(x[:, None]).mean(1)
        x = self.line(functional.avg_pool2d(x, 2).flatten(2))
        return self.head(x.amax(2)).softmax(-1)


class Vit(nn.Module):
    """Patches, learned positions, attention in pieces as `nn.MultiheadAttention` has it."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        self.places = nn.Parameter(torch.zeros(1, 17, 32))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (t.reshape(*t.shape[:2], 4, 8).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1) @ v
        x = x + self.out(scores.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Bert(nn.Module):
    """Embeddings, fused attention, sums of products with their addend in one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(12, 32)
        self.qkv = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.norm, self.pooler = nn.LayerNorm(32), nn.Linear(32, 32)
        self.weight, self.bias = nn.Parameter(torch.rand(32, 6)), nn.Parameter(torch.rand(6))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.words(tokens) + self.places.weight)
        q, k, v = (layer(x).unflatten(-1, (4, 8)).transpose(1, 2) for layer in self.qkv)
        x = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = torch.baddbmm(x, x @ x.transpose(1, 2), x, beta=0.5)
        return torch.addmm(self.bias, torch.tanh(self.pooler(x[:, 0])), self.weight)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(16, 24, 2, batch_first=True, bidirectional=True)
        self.gated = nn.GRU(48, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gated(self.layers(x)[0])[0][:, -1])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.grow, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        deep = functional.relu(self.second(functional.max_pool2d(x, 2)))
        joined = torch.cat([x, self.grow(deep)], 1)
        return functional.interpolate(self.last(joined), scale_factor=2.0)


NETWORKS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "cnn": (Cnn, (3, 32, 32)),
    "vit": (Vit, (3, 32, 32)),
    "bert": (Bert, (12,)),
    "lstm": (Lstm, (7, 16)),
    "unet": (UNet, (1, 16, 16)),
}
"""Classes, and sizes of their input without the batch."""


def example(name: str, dtype: torch.dtype, batch: int = 2) -> Any:
    """Return an input of a network."""
    shape = (batch, *NETWORKS[name][1])
    return torch.zeros(shape, dtype=torch.int64 if name == "bert" else dtype)
