"""Residual networks (He 2016), grouped (Xie 2017), wide (Zagoruyko 2016) and with SE (Hu 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from dataset.families.networks.layers import Convolution, ImageHead, SqueezeExcite, activation


class Basic(nn.Module):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, *, act: str, se: bool, **_: int):
        super().__init__()
        self.body = nn.Sequential(
            Convolution(channels, width, 3, stride=stride, act=act),
            Convolution(width, width, 3, act="none"),
            *([SqueezeExcite(width, width // 16 + 4)] if se else []),
        )
        self.skip = _skip(channels, width, stride)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.act(self.body(x) + self.skip(x))


class Bottleneck(nn.Module):
    """1×1, grouped 3×3, 1×1."""

    expansion = 4

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int,
        *,
        act: str,
        se: bool,
        groups: int = 1,
        group_width: int = 64,
    ):
        super().__init__()
        inner, outer = width * group_width // 64 * groups, width * self.expansion
        self.body = nn.Sequential(
            Convolution(channels, inner, 1, act=act),
            Convolution(inner, inner, 3, stride=stride, groups=groups, act=act),
            Convolution(inner, outer, 1, act="none"),
            *([SqueezeExcite(outer, outer // 16)] if se else []),
        )
        self.skip = _skip(channels, outer, stride)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.act(self.body(x) + self.skip(x))


def _skip(channels: int, width: int, stride: int) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    return Convolution(channels, width, 1, stride=stride, act="none")


class ResNet(nn.Module):
    """Stem, four stages, head."""

    def __init__(
        self,
        *,
        block: str,
        depths: list[int],
        width: int,
        groups: int,
        group_width: int,
        act: str,
        se: bool,
        stem: str,
    ):
        super().__init__()
        kind = Basic if block == "basic" else Bottleneck
        self.stem = _stem(stem, width, act)
        stages: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                stride = 2 if stage and i == 0 else 1
                stages.append(
                    kind(
                        channels,
                        width << stage,
                        stride,
                        act=act,
                        se=se,
                        groups=groups,
                        group_width=group_width,
                    )
                )
                channels = (width << stage) * kind.expansion
        self.stages = nn.Sequential(*stages)
        self.head = ImageHead(channels)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.stages(self.stem(x)))


def _stem(kind: str, width: int, act: str) -> nn.Module:
    if kind == "deep":
        half = width // 2
        layers = [
            Convolution(3, half, 3, stride=2, act=act),
            Convolution(half, half, 3, act=act),
            Convolution(half, width, 3, act=act),
        ]
    else:
        layers = [Convolution(3, width, 7, stride=2, act=act)]
    return nn.Sequential(*layers, nn.MaxPool2d(3, 2, padding=1))
