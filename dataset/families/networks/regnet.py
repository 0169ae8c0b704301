"""RegNet (Radosavovic et al. 2020): widths of blocks follow a quantised line."""

from __future__ import annotations

import math

from torch import Tensor, nn

from dataset.families.networks.layers import Convolution, ImageHead, SqueezeExcite, activation


def plan(*, first: int, slope: float, step: float, depth: int, group: int) -> list[tuple[int, int]]:
    """Return (width, depth) of each stage: w = first + slope · i, snapped to first · step^k."""
    widths = []
    for i in range(depth):
        power = round(math.log((first + slope * i) / first) / math.log(step))
        snapped = first * step**power
        widths.append(max(group, round(snapped / group) * group))
    return [(width, widths.count(width)) for width in dict.fromkeys(widths)]


class RegNetBlock(nn.Module):
    """1×1, grouped 3×3, squeeze-excite, 1×1, all of one width."""

    def __init__(self, channels: int, width: int, *, stride: int, group: int, se: bool, act: str):
        super().__init__()
        self.body = nn.Sequential(
            Convolution(channels, width, 1, act=act),
            Convolution(width, width, 3, stride=stride, groups=width // group, act=act),
            *([SqueezeExcite(width, max(8, channels // 4))] if se else []),
            Convolution(width, width, 1, act="none"),
        )
        same = stride == 1 and channels == width
        self.skip = (
            nn.Identity() if same else Convolution(channels, width, 1, stride=stride, act="none")
        )
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.act(self.body(x) + self.skip(x))


class RegNet(nn.Sequential):
    """Stem, stages of the plan, head."""

    def __init__(
        self, *, first: int, slope: float, step: float, depth: int, group: int, se: bool, act: str
    ):
        layers: list[nn.Module] = [Convolution(3, 32, 3, stride=2, act=act)]
        channels = 32
        for width, count in plan(first=first, slope=slope, step=step, depth=depth, group=group):
            for i in range(count):
                stride = 2 if i == 0 else 1
                layers.append(
                    RegNetBlock(channels, width, stride=stride, group=group, se=se, act=act)
                )
                channels = width
        super().__init__(*layers, ImageHead(channels))
