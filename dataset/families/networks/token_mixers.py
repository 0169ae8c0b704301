"""MLP-Mixer and its relatives, and MobileViT."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dataset.families.networks.inverted import Inverted, Stage
from dataset.families.networks.layers import (
    Convolution,
    ImageHead,
    Mlp,
    TransformerBlock,
    activation,
)


class MixerBlock(nn.Module):
    """An MLP over positions, then one over channels (Tolstikhin et al. 2021).

    "mixer" mixes positions by an MLP, "linear" by one matrix (ResMLP, Touvron et al. 2021),
    "gated" by a gate from the other positions (gMLP, Liu et al. 2021).
    """

    def __init__(
        self, tokens: int, width: int, *, token_hidden: int, hidden: int, act: str, mixing: str
    ):
        super().__init__()
        self.mixing = mixing
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(hidden // 2 if mixing == "gated" else width)
        if mixing == "mixer":
            self.places: nn.Module = Mlp(tokens, token_hidden, act=act)
        else:
            self.places = nn.Linear(tokens, tokens)
        if mixing == "gated":
            self.up, self.act = nn.Linear(width, hidden), activation(act)
            self.down = nn.Linear(hidden // 2, width)
        else:
            self.mlp = Mlp(width, hidden, act=act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        if self.mixing == "gated":
            kept, gate = self.act(self.up(self.norm1(x))).chunk(2, -1)
            gate = self.places(self.norm2(gate).transpose(1, 2)).transpose(1, 2)
            return x + self.down(kept * gate)
        x = x + self.places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.norm2(x))


class Mixer(nn.Module):
    """Patches, mixer blocks, mean, head."""

    def __init__(
        self,
        *,
        image: tuple[int, int],
        patch: int,
        width: int,
        depth: int,
        token_ratio: float,
        mlp_ratio: float,
        act: str,
        mixing: str,
    ):
        super().__init__()
        tokens = image[0] // patch * (image[1] // patch)
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        self.blocks = nn.Sequential(
            *(
                MixerBlock(
                    tokens,
                    width,
                    token_hidden=int(width * token_ratio),
                    hidden=int(width * mlp_ratio),
                    act=act,
                    mixing=mixing,
                )
                for _ in range(depth)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.blocks(self.embed(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


class MobileVitBlock(nn.Module):
    """A transformer over the pixels at the same position in each patch (Mehta 2022)."""

    def __init__(self, channels: int, width: int, *, depth: int, heads: int, patch: int, act: str):
        super().__init__()
        self.patch = patch
        self.enter = nn.Sequential(
            Convolution(channels, channels, 3, act=act), nn.Conv2d(channels, width, 1, bias=False)
        )
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads, 2 * width, act=act) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.leave = Convolution(width, channels, 1, act=act)
        self.fuse = Convolution(2 * channels, channels, 3, act=act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = self.enter(x)
        batch, _, height, width = y.shape
        rows, columns = -(-height // self.patch), -(-width // self.patch)
        fits = rows * self.patch == height and columns * self.patch == width
        if not fits:
            size = (rows * self.patch, columns * self.patch)
            y = functional.interpolate(y, size=size, mode="bilinear", align_corners=False)
        y = y.unflatten(3, (columns, self.patch)).unflatten(2, (rows, self.patch))
        y = y.permute(0, 3, 5, 2, 4, 1).flatten(3, 4).flatten(0, 2)
        y = self.norm(self.blocks(y))
        y = y.unflatten(0, (batch, self.patch, self.patch)).unflatten(3, (rows, columns))
        y = y.permute(0, 5, 3, 1, 4, 2).flatten(4, 5).flatten(2, 3)
        if not fits:
            y = functional.interpolate(
                y, size=(height, width), mode="bilinear", align_corners=False
            )
        return self.fuse(torch.cat([x, self.leave(y)], 1))


class MobileVit(nn.Module):
    """Inverted residuals, with transformers in the last three stages."""

    def __init__(
        self,
        *,
        widths: list[int],
        inner: list[int],
        depths: list[int],
        heads: int,
        patch: int,
        expansion: float,
        act: str,
    ):
        super().__init__()
        layers: list[nn.Module] = [Convolution(3, widths[0], 3, stride=2, act=act)]
        channels = widths[0]
        for i, width in enumerate(widths):
            stage = Stage("inverted", width, 1, 2, 3, expansion, 0.0, act)
            layers.append(Inverted(channels, width, 2 if i else 1, stage))
            channels = width
            if i >= 2:
                layers.append(
                    MobileVitBlock(
                        width, inner[i - 2], depth=depths[i - 2], heads=heads, patch=patch, act=act
                    )
                )
        layers.append(Convolution(channels, 4 * channels, 1, act=act))
        self.features = nn.Sequential(*layers)
        self.head = ImageHead(4 * channels)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))
