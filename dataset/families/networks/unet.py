"""Encoder-decoder networks with skip connections (Ronneberger et al. 2015) for gridded fields."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dataset.families.networks.layers import Convolution


class FieldUNet(nn.Module):
    """Fields → fields on a grid of any size; the decoder restores odd sizes."""

    def __init__(
        self,
        *,
        channels: int,
        outputs: int,
        width: int,
        levels: int,
        depth: int,
        kernel: int,
        act: str,
        norm: str,
        down: str,
        up: str,
        residual: bool,
    ):
        super().__init__()
        settings: dict[str, Any] = {"kernel": kernel, "act": act, "norm": norm, "depth": depth}
        widths = [width << min(i, 4) for i in range(levels)]
        self.encoder = nn.ModuleList()
        self.shrink = nn.ModuleList()
        for i, w in enumerate(widths):
            if i:
                self.shrink.append(_shrink(down, widths[i - 1]))
            ins = channels if i == 0 else widths[i - 1]
            self.encoder.append(Stage(ins, w, residual=residual, **settings))
        self.grow = nn.ModuleList()
        self.decoder = nn.ModuleList()
        for low, high in zip(widths[:0:-1], widths[-2::-1], strict=True):
            self.grow.append(_Grow(up, low, high))
            self.decoder.append(Stage(2 * high, high, residual=residual, **settings))
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        kept: list[Tensor] = []
        for i, stage in enumerate(self.encoder):
            x = stage(x if i == 0 else self.shrink[i - 1](x))
            kept.append(x)
        for grow, stage, skip in zip(self.grow, self.decoder, kept[-2::-1], strict=True):
            x = stage(torch.cat([grow(x, skip), skip], 1))
        return self.head(x)


class Stage(nn.Module):
    """Several convolutions, with a shortcut if `residual`."""

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        kernel: int,
        act: str,
        norm: str,
        depth: int,
        residual: bool,
    ):
        super().__init__()
        self.body = nn.Sequential(
            *(
                Convolution(channels if i == 0 else width, width, kernel, norm_name=norm, act=act)
                for i in range(depth)
            )
        )
        self.skip = nn.Conv2d(channels, width, 1) if residual else None

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.body(x) if self.skip is None else self.body(x) + self.skip(x)


def _shrink(kind: str, width: int) -> nn.Module:
    if kind == "stride":
        return nn.Conv2d(width, width, 3, stride=2, padding=1)
    return nn.MaxPool2d(2, ceil_mode=True) if kind == "max" else nn.AvgPool2d(2, ceil_mode=True)


class _Grow(nn.Module):
    """Upsampling by a transposed convolution or interpolation, cropped to the skip's size."""

    def __init__(self, kind: str, low: int, high: int) -> None:
        super().__init__()
        self.kind = kind
        self.layer: nn.Module = (
            nn.ConvTranspose2d(low, high, 2, stride=2)
            if kind == "transposed"
            else nn.Conv2d(low, high, 1)
        )

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.layer(x)
        height, width = skip.shape[2:]
        if self.kind == "transposed":
            return x[:, :, :height, :width]
        if self.kind == "nearest":
            return functional.interpolate(x, size=(height, width), mode="nearest")
        return functional.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)
