"""Networks with cheap features: ShuffleNet v2 and GhostNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dataset.families.networks.layers import Convolution, ImageHead, SqueezeExcite, round_width


def shuffle_channels(x: Tensor, groups: int) -> Tensor:
    """Interleave the channels of groups (Zhang et al. 2018)."""
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


class ShuffleUnit(nn.Module):
    """Half of the channels are convolved, then interleaved with the rest (Ma et al. 2018)."""

    def __init__(self, channels: int, width: int, *, stride: int, kernel: int, act: str, se: bool):
        super().__init__()
        half, self.stride = width // 2, stride
        ins = channels if stride == 2 else half
        self.body = nn.Sequential(
            Convolution(ins, half, 1, act=act),
            Convolution(half, half, kernel, stride=stride, groups=half, act="none"),
            Convolution(half, half, 1, act=act),
            *([SqueezeExcite(half, round_width(half / 4))] if se else []),
        )
        self.skip = (
            nn.Sequential(
                Convolution(ins, ins, kernel, stride=2, groups=ins, act="none"),
                Convolution(ins, half, 1, act=act),
            )
            if stride == 2
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        first, second = (x, x) if self.stride == 2 else x.chunk(2, 1)
        return shuffle_channels(torch.cat([self.skip(first), self.body(second)], 1), 2)


class ShuffleNet(nn.Module):
    """ShuffleNet v2: three stages of units."""

    def __init__(
        self, *, width: int, depths: list[int], kernel: int, act: str, se: bool, features: int
    ):
        super().__init__()
        layers: list[nn.Module] = [
            Convolution(3, 24, 3, stride=2, act=act),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        channels = 24
        for stage, depth in enumerate(depths):
            wide = width << stage
            for i in range(depth):
                stride = 2 if i == 0 else 1
                layers.append(
                    ShuffleUnit(channels, wide, stride=stride, kernel=kernel, act=act, se=se)
                )
                channels = wide
        layers.append(Convolution(channels, features, 1, act=act))
        self.features = nn.Sequential(*layers)
        self.head = ImageHead(features)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))


class Ghost(nn.Module):
    """Some channels by convolution, the others by a cheap depthwise one (Han et al. 2020)."""

    def __init__(self, channels: int, width: int, *, ratio: int, kernel: int, act: str) -> None:
        super().__init__()
        first = -(-width // ratio)
        self.width = width
        self.primary = Convolution(channels, first, 1, act=act)
        self.cheap = Convolution(first, first * (ratio - 1), kernel, groups=first, act=act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = self.primary(x)
        return torch.cat([y, self.cheap(y)], 1)[:, : self.width]


class GhostBlock(nn.Module):
    """Ghost up, depthwise if strided, squeeze-excite, ghost down."""

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        stride: int,
        expansion: float,
        ratio: int,
        kernel: int,
        se: bool,
        act: str,
    ):
        super().__init__()
        inner = round_width(channels * expansion)
        self.body = nn.Sequential(
            Ghost(channels, inner, ratio=ratio, kernel=3, act=act),
            *(
                [Convolution(inner, inner, kernel, stride=2, groups=inner, act="none")]
                if stride == 2
                else []
            ),
            *([SqueezeExcite(inner, round_width(inner / 4), gate="hardsigmoid")] if se else []),
            Ghost(inner, width, ratio=ratio, kernel=3, act="none"),
        )
        self.skip: nn.Module = nn.Identity()
        if stride == 2 or channels != width:
            self.skip = nn.Sequential(
                Convolution(channels, channels, kernel, stride=stride, groups=channels, act="none"),
                Convolution(channels, width, 1, act="none"),
            )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.body(x) + self.skip(x)


class GhostNet(nn.Module):
    """Five stages of ghost blocks."""

    def __init__(
        self,
        *,
        width: float,
        depth: int,
        expansion: float,
        ratio: int,
        kernel: int,
        se: bool,
        act: str,
    ):
        super().__init__()
        channels = round_width(16 * width)
        layers: list[nn.Module] = [Convolution(3, channels, 3, stride=2, act=act)]
        for stage, base in enumerate((24, 40, 80, 160)):
            for i in range(depth if stage else 1):
                wide = round_width(base * width)
                layers.append(
                    GhostBlock(
                        channels,
                        wide,
                        stride=2 if i == 0 else 1,
                        expansion=expansion,
                        ratio=ratio,
                        kernel=kernel,
                        se=se and stage in (1, 3),
                        act=act,
                    )
                )
                channels = wide
        layers.append(Convolution(channels, round_width(960 * width), 1, act=act))
        self.features = nn.Sequential(*layers)
        self.head = ImageHead(round_width(960 * width), hidden=1280, act=act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))
