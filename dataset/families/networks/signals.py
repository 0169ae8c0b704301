"""Networks over sound and series, over tables, and between two texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dataset.families.networks.layers import (
    Attention,
    Convolution,
    Mlp,
    PositionTable,
    TransformerBlock,
    activation,
    token_norm,
)


class TemporalBlock(nn.Module):
    """Two dilated convolutions and a shortcut (Bai et al. 2018), or a gated pair (WaveNet)."""

    def __init__(self, width: int, *, kernel: int, dilation: int, norm: str, act: str, gated: bool):
        super().__init__()
        self.gated = gated
        settings: dict[str, Any] = {"dilation": dilation, "norm_name": norm, "dimensions": 1}
        outs = 2 * width if gated else width
        self.first = Convolution(width, outs, kernel, act="none" if gated else act, **settings)
        self.second = Convolution(width, width, 1 if gated else kernel, act="none", **settings)
        self.act = nn.Identity() if gated else activation(act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = self.first(x)
        if self.gated:
            value, gate = y.chunk(2, 1)
            y = value.tanh() * gate.sigmoid()
        return self.act(x + self.second(y))


class TemporalNet(nn.Module):
    """Strided convolutions into frames, blocks of growing dilation, head."""

    def __init__(
        self,
        *,
        channels: int,
        width: int,
        kernel: int,
        depth: int,
        stacks: int,
        stride: int,
        norm: str,
        act: str,
        gated: bool,
        output: str,
    ):
        super().__init__()
        self.enter = nn.Conv1d(channels, width, 2 * stride + 1, stride=stride, padding=stride)
        self.blocks = nn.Sequential(
            *(
                TemporalBlock(width, kernel=kernel, dilation=2**i, norm=norm, act=act, gated=gated)
                for _ in range(stacks)
                for i in range(depth)
            )
        )
        self.output = output
        self.head = nn.Conv1d(width, 35, 1) if output == "frames" else nn.Linear(width, 35)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.blocks(self.enter(x))
        return self.head(x if self.output == "frames" else x.mean(2))


class Conformer(nn.Module):
    """Speech frames through attention and convolution blocks (Gulati et al. 2020)."""

    def __init__(
        self,
        *,
        bands: int,
        width: int,
        depth: int,
        heads: int,
        kernel: int,
        mlp_ratio: float,
        act: str,
    ):
        super().__init__()
        self.shrink = nn.Sequential(
            Convolution(1, width // 4, 3, stride=2, norm_name="none", act="relu"),
            Convolution(width // 4, width // 4, 3, stride=2, norm_name="none", act="relu"),
        )
        self.embed = nn.Linear(width // 4 * (-(-bands // 4)), width)
        self.blocks = nn.Sequential(
            *(
                ConformerBlock(width, heads, kernel=kernel, hidden=int(width * mlp_ratio), act=act)
                for _ in range(depth)
            )
        )
        self.head = nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.shrink(x[:, None]).permute(0, 2, 1, 3).flatten(2)
        return self.head(self.blocks(self.embed(x)))


class ConformerBlock(nn.Module):
    """Half an MLP, attention, a gated depthwise convolution, half an MLP."""

    def __init__(self, width: int, heads: int, *, kernel: int, hidden: int, act: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.mlp1, self.mlp2 = Mlp(width, hidden, act=act), Mlp(width, hidden, act=act)
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 2 * width)
        self.mix = Convolution(width, width, kernel, groups=width, act=act, dimensions=1)
        self.down = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = x + 0.5 * self.mlp1(self.norms[0](x))
        x = x + self.attention(self.norms[1](x))
        value, gate = self.up(self.norms[2](x)).chunk(2, -1)
        y = value * gate.sigmoid()
        x = x + self.down(self.mix(y.transpose(1, 2)).transpose(1, 2))
        x = x + 0.5 * self.mlp2(self.norms[3](x))
        return self.norms[4](x)


class TableNet(nn.Module):
    """Rows of numbers through linear layers, with shortcuts if `residual`."""

    def __init__(
        self,
        *,
        features: int,
        width: int,
        depth: int,
        outputs: int,
        norm: str,
        act: str,
        residual: bool,
    ):
        super().__init__()
        self.enter = nn.Linear(features, width)
        norms = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
        self.blocks = nn.ModuleList(
            nn.Sequential(
                norms[norm](width) if norm in norms else nn.Identity(),
                nn.Linear(width, width),
                activation(act),
            )
            for _ in range(depth)
        )
        self.residual = residual
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x) if self.residual else block(x)
        return self.head(x)


class Recommender(nn.Module):
    """Pairwise products of category embeddings and an MLP of numbers (Naumov 2019)."""

    def __init__(
        self,
        *,
        fields: int,
        rows: int,
        width: int,
        numbers: int,
        hidden: int,
        depth: int,
        act: str,
        meeting: str,
    ):
        super().__init__()
        self.fields, self.rows, self.meeting = fields, rows, meeting
        self.embed = nn.Embedding(fields * rows, width)
        self.bottom = nn.Sequential(
            nn.Linear(numbers, hidden), activation(act), nn.Linear(hidden, width), activation(act)
        )
        joined = (fields + 1) ** 2 if meeting == "products" else (fields + 1) * width
        if meeting == "products":
            joined += width
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Linear(joined if i == 0 else hidden, hidden), activation(act)]
        self.top = nn.Sequential(*layers, nn.Linear(hidden, 1))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:  # noqa: D102
        offsets = torch.arange(self.fields, device=categories.device) * self.rows
        dense = self.bottom(numbers)
        x = torch.cat([dense[:, None], self.embed(categories + offsets)], 1)
        if self.meeting == "products":
            return self.top(torch.cat([dense, (x @ x.transpose(1, 2)).flatten(1)], 1))
        return self.top(x.flatten(1))


class Translator(nn.Module):
    """Encoder and decoder over two texts (Vaswani et al. 2017; T5, Raffel et al. 2020)."""

    def __init__(
        self,
        *,
        length: int,
        target: int,
        vocabulary: int,
        width: int,
        encoder: int,
        decoder: int,
        heads: int,
        mlp_ratio: float,
        act: str,
        norm: str,
    ):
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.places1, self.places2 = PositionTable(length, width), PositionTable(target, width)
        self.encoder = nn.Sequential(
            *(
                TransformerBlock(width, heads, hidden, act=act, norm_name=norm)
                for _ in range(encoder)
            )
        )
        self.norm = token_norm(norm, width)
        self.decoder = nn.ModuleList(
            nn.ModuleList(
                [
                    TransformerBlock(width, heads, hidden, act=act, norm_name=norm, causal=True),
                    token_norm(norm, width),
                    Attention(width, heads),
                ]
            )
            for _ in range(decoder)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        states = self.norm(self.encoder(self.places1(self.source(source))))
        x = self.places2(self.target(target))
        for layer in self.decoder:
            block, between, cross = layer.children()
            x = x + cross(between(x), states)
            x = block(x)
        return self.head(x)


class FieldTransformer(nn.Module):
    """Weather fields as patches through a transformer, back to fields."""

    def __init__(
        self,
        *,
        grid: tuple[int, int],
        channels: int,
        outputs: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
        act: str,
        order: str,
    ):
        super().__init__()
        self.grid = grid
        self.pad = tuple(-side % patch for side in grid)
        self.places = tuple(-(-side // patch) for side in grid)
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = PositionTable(self.places[0] * self.places[1], width)
        hidden = int(width * mlp_ratio)
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads, hidden, act=act, order=order) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs * patch * patch)
        self.back = nn.PixelShuffle(patch)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = nn.functional.pad(x, (0, self.pad[1], 0, self.pad[0]))
        x = self.blocks(self.positions(self.embed(x).flatten(2).transpose(1, 2)))
        x = self.head(self.norm(x)).transpose(1, 2).unflatten(2, self.places)
        return self.back(x)[:, :, : self.grid[0], : self.grid[1]]
