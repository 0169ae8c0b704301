"""The U-Nets of Stable Diffusion 1.x and XL (Rombach et al. 2022, Podell et al. 2023), a decoder.

A U-Net predicts the noise of a latent image at a time step, given the token states of a text. The
decoder of the autoencoder makes pixels of the latent image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUPS = 32


@dataclass(frozen=True, slots=True)
class UNetSizes:
    """Sizes of a U-Net.

    Attributes:
        widths: channels by level, largest image first.
        depths: transformer blocks after each residual block of a level; 0 for none.
        middle: transformer blocks in the middle.
        heads: attention heads by level.
        text_width: width of the token states.
        added_width: width of additional conditions, pooled text and sizes; 0 for none.
        linear: whether the projections around transformers are linear layers, not convolutions.
        channels: channels of the latent image.
        residuals: residual blocks per level of the encoder; the decoder has one more.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    middle: int
    heads: tuple[int, ...]
    text_width: int
    added_width: int = 0
    linear: bool = False
    channels: int = 4
    residuals: int = 2


SD15 = UNetSizes((320, 640, 1280, 1280), (1, 1, 1, 0), 1, (8, 8, 8, 8), 768)
SDXL = UNetSizes(
    (320, 640, 1280), (0, 2, 10), 10, (5, 10, 20), 2048, added_width=1280 + 6 * 256, linear=True
)


def wave_code(time: Tensor, width: int) -> Tensor:
    """Return the sinusoidal embedding of a time, as (batch, width)."""
    half = width // 2
    steps = torch.arange(half, device=time.device, dtype=torch.float32)
    angles = time.float() * torch.exp(-math.log(10000.0) * steps / half)
    return torch.cat([angles.sin(), angles.cos()], -1).to(time.dtype)


def groups_that_fit(channels: int, groups: int) -> int:
    """Return the largest divisor of `channels` that is at most `groups`."""
    return next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0)


class TimeResidual(nn.Module):
    """Two norm–SiLU–convolutions; the time shifts, or scales and shifts, the values in between.

    Without a time (`time_width` 0) there is no shift.
    """

    def __init__(self, channels: int, width: int, time_width: int, *, scale: bool) -> None:
        super().__init__()
        self.scale = scale
        self.norm1 = nn.GroupNorm(groups_that_fit(channels, GROUPS), channels)
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        if time_width:
            self.time = nn.Linear(time_width, 2 * width if scale else width)
        self.norm2 = nn.GroupNorm(groups_that_fit(width, GROUPS), width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Conv2d(channels, width, 1) if channels != width else nn.Identity()

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:  # noqa: D102
        y = self.conv1(functional.silu(self.norm1(x)))
        if time is None:
            y = self.norm2(y)
        else:
            code = self.time(functional.silu(time))[:, :, None, None]
            if self.scale:
                scale, shift = code.chunk(2, 1)
                y = self.norm2(y) * (1 + scale) + shift
            else:
                y = self.norm2(y + code)
        z: Tensor = self.skip(x) + self.conv2(functional.silu(y))
        return z


class UNet(nn.Module):
    """Latents (batch, channels, h, w), times (batch, 1), texts (batch, tokens, width) → noise.

    With `added_width` also additional conditions, (batch, added_width).
    """

    def __init__(self, sizes: UNetSizes = SD15) -> None:
        super().__init__()
        widths, depths = sizes.widths, sizes.depths
        first, last = widths[0], len(widths) - 1
        time_width = 4 * first
        self.first = first
        self.time = _two_layers(first, time_width)
        self.added = _two_layers(sizes.added_width, time_width) if sizes.added_width else None
        self.enter = nn.Conv2d(sizes.channels, first, 3, padding=1)

        def stage(channels: int, level: int, depth: int) -> Stage:
            return Stage(channels, widths[level], time_width, depth, sizes.heads[level], sizes)

        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, now = [first], first
        for level, width in enumerate(widths):
            for _ in range(sizes.residuals):
                self.down.append(stage(now, level, depths[level]))
                skips.append(now := width)
            if level < last:
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                skips.append(now)
        self.middle = nn.ModuleList([stage(now, last, sizes.middle), stage(now, last, 0)])
        for level in reversed(range(len(widths))):
            for _ in range(sizes.residuals + 1):
                self.up.append(stage(now + skips.pop(), level, depths[level]))
                now = widths[level]
            if level:
                self.up.append(nn.Conv2d(now, now, 3, padding=1))
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, now), nn.SiLU(), nn.Conv2d(now, sizes.channels, 3, padding=1)
        )

    def forward(  # noqa: D102
        self, latent: Tensor, time: Tensor, text: Tensor, added: Tensor | None = None
    ) -> Tensor:
        code = self.time(wave_code(time, self.first))
        if self.added is not None:
            code = code + self.added(added)
        x = self.enter(latent)
        kept = [x]
        for part in self.down:
            x = part(x, code, text) if isinstance(part, Stage) else part(x)
            kept.append(x)
        for part in self.middle:
            x = part(x, code, text)
        for part in self.up:
            if isinstance(part, Stage):
                x = part(torch.cat([x, kept.pop()], 1), code, text)
            else:
                x = part(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        noise: Tensor = self.leave(x)
        return noise


class Stage(nn.Module):
    """A residual block with a time embedding, optionally followed by a transformer."""

    def __init__(
        self, channels: int, width: int, time_width: int, depth: int, heads: int, sizes: UNetSizes
    ) -> None:
        super().__init__()
        self.residual = TimeResidual(channels, width, time_width, scale=False)
        self.transformer = Transformer(width, depth, heads, sizes) if depth else None

    def forward(self, x: Tensor, code: Tensor, text: Tensor) -> Tensor:  # noqa: D102
        x = self.residual(x, code)
        return x if self.transformer is None else self.transformer(x, text)


class Transformer(nn.Module):
    """Transformer blocks over the positions of an image, between two projections."""

    def __init__(self, width: int, depth: int, heads: int, sizes: UNetSizes) -> None:
        super().__init__()
        self.linear = sizes.linear
        self.norm = nn.GroupNorm(GROUPS, width, eps=1e-6)
        if sizes.linear:
            self.enter: nn.Module = nn.Linear(width, width)
            self.leave: nn.Module = nn.Linear(width, width)
        else:
            self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.blocks = nn.ModuleList(Block(width, heads, sizes.text_width) for _ in range(depth))

    def forward(self, x: Tensor, text: Tensor) -> Tensor:  # noqa: D102
        y = self.norm(x)
        y = y if self.linear else self.enter(y)
        y = y.permute(0, 2, 3, 1).flatten(1, 2)
        y = self.enter(y) if self.linear else y
        for block in self.blocks:
            y = block(y, text)
        y = self.leave(y) if self.linear else y
        y = y.unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)
        return x + (y if self.linear else self.leave(y))


class Block(nn.Module):
    """Self-attention, cross-attention to the text and a gated MLP.

    Each part follows a layer norm and has a residual connection.
    """

    def __init__(self, width: int, heads: int, text_width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.places = Attention(width, width, heads)
        self.reading = Attention(width, text_width, heads)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, y: Tensor, text: Tensor) -> Tensor:  # noqa: D102
        normed = self.norms[0](y)
        y = y + self.places(normed, normed)
        y = y + self.reading(self.norms[1](y), text)
        value, gate = self.wide(self.norms[2](y)).chunk(2, -1)
        return y + self.narrow(value * functional.gelu(gate))


class Attention(nn.Module):
    """Multi-head attention; queries, keys and values without biases."""

    def __init__(self, width: int, source_width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(source_width, width, bias=False)
        self.value = nn.Linear(source_width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:  # noqa: D102
        parts = (self.query(x), self.key(source), self.value(source))
        heads = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(*heads)
        y: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y


def _two_layers(width: int, out_width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, out_width), nn.SiLU(), nn.Linear(out_width, out_width))


WIDTHS = (512, 512, 256, 128)
RESIDUALS = 3


class PixelDecoder(nn.Module):
    """Latents (batch, channels, h, w) → images (batch, 3, 8 h, 8 w).

    Args:
        channels: channels of the latent image.
        quantized: whether a 1 x 1 convolution precedes it, as in Stable Diffusion 1.x and XL.
    """

    def __init__(self, channels: int = 4, *, quantized: bool = True) -> None:
        super().__init__()
        self.unquantize = nn.Conv2d(channels, channels, 1) if quantized else nn.Identity()
        now = WIDTHS[0]
        self.enter = nn.Conv2d(channels, now, 3, padding=1)
        self.middle = nn.Sequential(_residual(now, now), PlaceAttention(now), _residual(now, now))
        self.up = nn.ModuleList()
        for level, width in enumerate(WIDTHS):
            for _ in range(RESIDUALS):
                self.up.append(_residual(now, width))
                now = width
            if level < len(WIDTHS) - 1:
                self.up.append(nn.Conv2d(now, now, 3, padding=1))
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, now), nn.SiLU(), nn.Conv2d(now, 3, 3, padding=1)
        )

    def forward(self, latent: Tensor) -> Tensor:  # noqa: D102
        x = self.middle(self.enter(self.unquantize(latent)))
        for part in self.up:
            if isinstance(part, nn.Conv2d):
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = part(x)
        pixels: Tensor = self.leave(x)
        return pixels


class PlaceAttention(nn.Module):
    """Single-head attention between all positions of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = (part(y)[:, None] for part in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed[:, 0]).transpose(1, 2).unflatten(2, x.shape[2:])


def _residual(channels: int, width: int) -> TimeResidual:
    return TimeResidual(channels, width, 0, scale=False)
