"""The U-Net that predicts noise (Ho et al. 2020; Rombach et al. 2022), and DiT (Peebles 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dataset.families.networks.layers import Attention, Mlp, PositionTable
from dippm.model.networks.diffusion_unet import TimeResidual, groups_that_fit, wave_code


class SpatialAttention(nn.Module):
    """Self-attention between positions, cross-attention to an optional text, an MLP."""

    def __init__(self, width: int, heads: int, context_width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups_that_fit(width, 32), width)
        self.itself = Attention(width, heads)
        self.reads = bool(context_width)
        if self.reads:
            self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.cross = Attention(width, heads, context_width=context_width)
            self.mlp = Mlp(width, 4 * width, act="geglu")

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:  # noqa: D102
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = y + self.itself(y)
        if self.reads:
            y = y + self.cross(self.norm2(y), context)
            y = y + self.mlp(self.norm3(y))
        return x + y.transpose(1, 2).unflatten(2, x.shape[2:])


class Level(nn.Module):
    """A residual block with a time embedding, followed by attention if `heads`."""

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        time_width: int,
        heads: int,
        text_width: int,
        scale: bool,
    ):
        super().__init__()
        self.residual = TimeResidual(channels, width, time_width, scale=scale)
        self.attention = SpatialAttention(width, heads, text_width) if heads else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor | None) -> Tensor:  # noqa: D102
        x = self.residual(x, time)
        return x if self.attention is None else self.attention(x, text)


class DiffusionUNet(nn.Module):
    """Noise from a noisy image, its time and, if `text_width`, the token states of a text.

    Attention is on the `attended` smallest levels and in the middle.
    """

    def __init__(
        self,
        *,
        channels: int,
        width: int,
        multipliers: list[int],
        depth: int,
        attended: int,
        head_width: int,
        text_width: int,
        scale: bool,
    ):
        super().__init__()
        self.width, time_width = width, 4 * width
        self.time = nn.Sequential(
            nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        wides = [width * m for m in multipliers]

        def level(ins: int, wide: int, *, attends: bool) -> Level:
            heads = groups_that_fit(wide, max(1, wide // head_width)) if attends else 0
            return Level(
                ins, wide, time_width=time_width, heads=heads, text_width=text_width, scale=scale
            )

        last, skips, now = len(wides) - 1, [width], width
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for i, wide in enumerate(wides):
            for _ in range(depth):
                self.down.append(level(now, wide, attends=i > last - attended))
                now = wide
                skips.append(now)
            if i < last:
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                skips.append(now)
        self.middle = level(now, now, attends=True)
        for i in reversed(range(len(wides))):
            for _ in range(depth + 1):
                self.up.append(level(now + skips.pop(), wides[i], attends=i > last - attended))
                now = wides[i]
            if i:
                self.up.append(nn.Conv2d(now, now, 3, padding=1))
        self.leave = nn.Sequential(
            nn.GroupNorm(groups_that_fit(now, 32), now),
            nn.SiLU(),
            nn.Conv2d(now, channels, 3, padding=1),
        )

    def forward(self, x: Tensor, time: Tensor, text: Tensor | None = None) -> Tensor:  # noqa: D102
        code = self.time(wave_code(time, self.width))
        x = self.enter(x)
        kept = [x]
        for part in self.down:
            x = part(x, code, text) if isinstance(part, Level) else part(x)
            kept.append(x)
        x = self.middle(x, code, text)
        for part in self.up:
            if isinstance(part, Level):
                x = part(torch.cat([x, kept.pop()], 1), code, text)
            else:
                x = part(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(x)


class DiffusionBlock(nn.Module):
    """A transformer block modulated by an embedding: norms scaled and shifted, branches gated."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention, self.mlp = Attention(width, heads), Mlp(width, hidden)
        self.modulate = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:  # noqa: D102
        parts = self.modulate(functional.silu(code))[:, None].chunk(6, -1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiffusionTransformer(nn.Module):
    """DiT: patches of a latent image, blocks modulated by the time, patches back."""

    def __init__(
        self,
        *,
        size: tuple[int, int],
        channels: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
    ):
        super().__init__()
        self.width, self.grid = width, (size[0] // patch, size[1] // patch)
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = PositionTable(self.grid[0] * self.grid[1], width)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        hidden = int(width * mlp_ratio)
        self.blocks = nn.ModuleList(DiffusionBlock(width, heads, hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, channels * patch * patch)
        self.back = nn.PixelShuffle(patch)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:  # noqa: D102
        code = self.time(wave_code(time, self.width))
        x = self.positions(self.embed(x).flatten(2).transpose(1, 2))
        for block in self.blocks:
            x = block(x, code)
        x = self.head(self.norm(x)).transpose(1, 2).unflatten(2, self.grid)
        return self.back(x)
