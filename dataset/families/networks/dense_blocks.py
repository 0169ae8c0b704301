"""Networks that concatenate channels: DenseNet, Inception, SqueezeNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dataset.families.networks.layers import Convolution, ImageHead, activation, round_width


class DenseLayer(nn.Module):
    """Norm, activation and convolution twice; the output is concatenated to the input."""

    def __init__(self, channels: int, growth: int, *, bottleneck: int, act: str, kernel: int):
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm2d(channels), activation(act)]
        if bottleneck:
            inner = bottleneck * growth
            layers += [
                nn.Conv2d(channels, inner, 1, bias=False),
                nn.BatchNorm2d(inner),
                activation(act),
            ]
            channels = inner
        layers.append(nn.Conv2d(channels, growth, kernel, padding=kernel // 2, bias=False))
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return torch.cat([x, self.body(x)], 1)


class DenseNet(nn.Module):
    """Dense blocks between transitions (Huang et al. 2017)."""

    def __init__(
        self,
        *,
        depths: list[int],
        growth: int,
        bottleneck: int,
        compression: float,
        act: str,
        kernel: int,
    ):
        super().__init__()
        channels = 2 * growth
        layers: list[nn.Module] = [
            Convolution(3, channels, 7, stride=2, act=act),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        for stage, depth in enumerate(depths):
            if stage:
                width = int(channels * compression)
                layers += [
                    nn.BatchNorm2d(channels),
                    activation(act),
                    nn.Conv2d(channels, width, 1, bias=False),
                    nn.AvgPool2d(2),
                ]
                channels = width
            for _ in range(depth):
                layers.append(
                    DenseLayer(channels, growth, bottleneck=bottleneck, act=act, kernel=kernel)
                )
                channels += growth
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels), activation(act))
        self.head = ImageHead(channels)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))


class Branches(nn.Module):
    """Several paths over one input, concatenated."""

    def __init__(self, *paths: nn.Module) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return torch.cat([path(x) for path in self.paths], 1)


class Inception(nn.Module):
    """Four paths per block (Szegedy 2015); large kernels whole, as twice 3×3, or as 1×7 and 7×1."""

    def __init__(self, *, width: int, depths: list[int], style: str, pool: str, act: str) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            Convolution(3, width, 7, stride=2, act=act),
            nn.MaxPool2d(3, 2, padding=1),
            Convolution(width, 3 * width, 3, act=act),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        channels = 3 * width
        for stage, depth in enumerate(depths):
            base = width << stage
            if stage:
                layers.append(nn.MaxPool2d(3, 2, padding=1))
            for _ in range(depth):
                layers.append(self._block(channels, base, style, pool, act))
                channels = base * 4
        self.features = nn.Sequential(*layers)
        self.head = ImageHead(channels)

    @staticmethod
    def _block(channels: int, base: int, style: str, pool: str, act: str) -> nn.Module:
        half = base // 2
        pooling = nn.MaxPool2d(3, 1, padding=1) if pool == "max" else nn.AvgPool2d(3, 1, padding=1)
        large: list[nn.Module] = [Convolution(half, base // 2, 5, act=act)]
        if style == "twice":
            large = [Convolution(half, half, 3, act=act), Convolution(half, half, 3, act=act)]
        elif style == "factored":
            large = [
                Convolution(half, half, (1, 7), act=act),
                Convolution(half, half, (7, 1), act=act),
            ]
        return Branches(
            Convolution(channels, base, 1, act=act),
            nn.Sequential(
                Convolution(channels, base, 1, act=act), Convolution(base, 2 * base, 3, act=act)
            ),
            nn.Sequential(Convolution(channels, half, 1, act=act), *large),
            nn.Sequential(pooling, Convolution(channels, half, 1, act=act)),
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))


class Fire(nn.Module):
    """1×1 squeeze, then 1×1 and 3×3 side by side (Iandola et al. 2016)."""

    def __init__(
        self, channels: int, width: int, *, squeeze: float, share: float, act: str, bypass: bool
    ):
        super().__init__()
        inner, large = round_width(width * squeeze), round_width(width * share)
        self.squeeze = Convolution(channels, inner, 1, norm_name="none", act=act)
        self.expand = Branches(
            Convolution(inner, width - large, 1, norm_name="none", act=act),
            Convolution(inner, large, 3, norm_name="none", act=act),
        )
        self.bypass = bypass and channels == width

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = self.expand(self.squeeze(x))
        return x + y if self.bypass else y


class SqueezeNet(nn.Module):
    """Fire modules between pools; a convolution as classifier."""

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        squeeze: float,
        share: float,
        act: str,
        bypass: bool,
        stem: int,
    ):
        super().__init__()
        layers: list[nn.Module] = [
            Convolution(3, width // 2, stem, stride=2, norm_name="none", act=act)
        ]
        channels = width // 2
        for stage in range(4):
            if stage < 3:
                layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            for _ in range(depth):
                wide = width * (stage + 1)
                layers.append(
                    Fire(channels, wide, squeeze=squeeze, share=share, act=act, bypass=bypass)
                )
                channels = wide
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Conv2d(channels, 1000, 1), activation(act), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))
