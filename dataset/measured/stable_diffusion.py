"""The U-Net of Stable Diffusion 1.x as a module of our own, for the tables that time it.

It predicts the noise of a latent image at a time, given the states of 77 tokens of a text
(Rombach et al. 2022; its sizes are those of the published configuration). Three of its four levels
attend, the smallest does not. A name is "sd:unet-v1@64": the latent image has 64 x 64 places,
which is an image of 512 x 512.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dataset.families.networks.diffusion import TimeResidual, wave_code

CHANNELS = 4
TOKENS, TEXT_WIDTH = 77, 768
WIDTHS = (320, 640, 1280, 1280)
ATTENDED = (True, True, True, False)
DEPTH = 2
HEADS = 8
GROUPS = 32
PIXELS_PER_PLACE = 8
"""Along each side: what the decoder makes of a place of the latent image."""


def module_of(name: str) -> nn.Module:
    """Return the module of a name, on no device.

    Raises:
        ValueError: if the name is not "unet-v1".
    """
    if name != "unet-v1":
        raise ValueError(f"unknown network of Stable Diffusion {name!r}; known: unet-v1")
    with torch.device("meta"):
        return UNet().eval()


def inputs_of(batch: int, size: int) -> tuple[Tensor, ...]:
    """Return latent images of `size` places a side, their times and texts, on no device."""
    with torch.device("meta"):
        latent = torch.empty(batch, CHANNELS, size, size)
        return latent, torch.empty(batch, 1), torch.empty(batch, TOKENS, TEXT_WIDTH)


class UNet(nn.Module):
    """Latents (batch, 4, height, width), times (batch, 1), texts (batch, 77, 768) → noise."""

    def __init__(self) -> None:
        super().__init__()
        first, last = WIDTHS[0], len(WIDTHS) - 1
        self.time = nn.Sequential(
            nn.Linear(first, 4 * first), nn.SiLU(), nn.Linear(4 * first, 4 * first)
        )
        self.enter = nn.Conv2d(CHANNELS, first, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, now = [first], first
        for level, (width, attends) in enumerate(zip(WIDTHS, ATTENDED, strict=True)):
            for _ in range(DEPTH):
                self.down.append(Stage(now, width, attends=attends))
                skips.append(now := width)
            if level < last:
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                skips.append(now)
        self.middle = nn.ModuleList([Stage(now, now, attends=True), Stage(now, now, attends=False)])
        for level in reversed(range(len(WIDTHS))):
            for _ in range(DEPTH + 1):
                self.up.append(Stage(now + skips.pop(), WIDTHS[level], attends=ATTENDED[level]))
                now = WIDTHS[level]
            if level:
                self.up.append(nn.Conv2d(now, now, 3, padding=1))
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, now), nn.SiLU(), nn.Conv2d(now, CHANNELS, 3, padding=1)
        )

    def forward(self, latent: Tensor, time: Tensor, text: Tensor) -> Tensor:  # noqa: D102
        code = self.time(wave_code(time, WIDTHS[0]))
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
        return self.leave(x)


class Stage(nn.Module):
    """A residual block that knows the time, and a transformer behind it where it attends."""

    def __init__(self, channels: int, width: int, *, attends: bool) -> None:
        super().__init__()
        self.residual = TimeResidual(channels, width, 4 * WIDTHS[0], scale=False)
        self.transformer = Transformer(width) if attends else None

    def forward(self, x: Tensor, code: Tensor, text: Tensor) -> Tensor:  # noqa: D102
        x = self.residual(x, code)
        return x if self.transformer is None else self.transformer(x, text)


class Transformer(nn.Module):
    """Attention between places, attention to the text and a gated MLP, between 1 x 1 convolutions.

    Each part stands behind a layer norm and is added to its input.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.places, self.reading = Attention(width, width), Attention(width, TEXT_WIDTH)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:  # noqa: D102
        y = self.enter(self.norm(x)).permute(0, 2, 3, 1).flatten(1, 2)
        normed = self.norms[0](y)
        y = y + self.places(normed, normed)
        y = y + self.reading(self.norms[1](y), text)
        value, gate = self.wide(self.norms[2](y)).chunk(2, -1)
        y = y + self.narrow(value * functional.gelu(gate))
        return x + self.leave(y.unflatten(1, x.shape[2:]).permute(0, 3, 1, 2))


class Attention(nn.Module):
    """Attention with 8 heads; queries, keys and values without biases."""

    def __init__(self, width: int, source_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(source_width, width, bias=False)
        self.value = nn.Linear(source_width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:  # noqa: D102
        parts = (self.query(x), self.key(source), self.value(source))
        heads = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(*heads)
        return self.out(mixed.transpose(1, 2).flatten(2))
