"""Networks over clips (batch, channels, frames, height, width)."""

from __future__ import annotations

from torch import Tensor, nn

from dataset.families.networks.layers import Convolution, activation, round_width


class Factored(nn.Sequential):
    """A convolution over space, then one over time (Tran et al. 2018)."""

    def __init__(self, channels: int, width: int, stride: int, act: str) -> None:
        inner = channels * width * 27 // (channels * 9 + 3 * width)
        super().__init__(
            Convolution(
                channels, inner, (1, 3, 3), stride=(1, stride, stride), act=act, dimensions=3
            ),
            Convolution(inner, width, (3, 1, 1), stride=(stride, 1, 1), act="none", dimensions=3),
        )


def convolution(kind: str, channels: int, width: int, stride: int, act: str) -> nn.Module:
    """Return "full" 3×3×3, "factored", or "frames" 1×3×3, without a last activation."""
    if kind == "factored":
        return Factored(channels, width, stride, act)
    kernel = (1, 3, 3) if kind == "frames" else (3, 3, 3)
    strides = (1, stride, stride) if kind == "frames" else stride
    return Convolution(channels, width, kernel, stride=strides, act="none", dimensions=3)


class Residual3d(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, kind: str, channels: int, width: int, stride: int, act: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolution(kind, channels, width, stride, act),
            activation(act),
            convolution(kind, width, width, 1, act),
        )
        strides = (1, stride, stride) if kind == "frames" else stride
        self.skip = (
            nn.Identity()
            if stride == 1 and channels == width
            else Convolution(channels, width, 1, stride=strides, act="none", dimensions=3)
        )
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.act(self.body(x) + self.skip(x))


class ResNet3d(nn.Module):
    """Residual stages over clips; "mixed" has full convolutions first and frames later."""

    def __init__(self, *, kind: str, depths: list[int], width: int, act: str, stem: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            Convolution(3, width, (stem, 7, 7), stride=(1, 2, 2), act=act, dimensions=3)
        ]
        channels = width
        for stage, depth in enumerate(depths):
            own = ("full" if stage < 2 else "frames") if kind == "mixed" else kind
            for i in range(depth):
                stride = 2 if stage and i == 0 else 1
                layers.append(Residual3d(own, channels, width << stage, stride, act))
                channels = width << stage
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels, 400))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))


class X3dBlock(nn.Module):
    """1×1×1 up, depthwise 3×3×3, squeeze-excite, 1×1×1 down (Feichtenhofer 2020)."""

    def __init__(
        self, channels: int, width: int, *, stride: int, expansion: float, se: bool, act: str
    ):
        super().__init__()
        inner = round_width(width * expansion)
        self.up = Convolution(channels, inner, 1, act=act, dimensions=3)
        self.mix = Convolution(
            inner, inner, 3, stride=(1, stride, stride), groups=inner, act="none", dimensions=3
        )
        self.squeeze = nn.Conv3d(inner, round_width(inner / 16), 1) if se else None
        self.excite = nn.Conv3d(round_width(inner / 16), inner, 1) if se else None
        self.act = activation(act)
        self.down = Convolution(inner, width, 1, act="none", dimensions=3)
        self.skip = (
            nn.Identity()
            if stride == 1 and channels == width
            else Convolution(
                channels, width, 1, stride=(1, stride, stride), act="none", dimensions=3
            )
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = self.mix(self.up(x))
        if self.squeeze is not None and self.excite is not None:
            means = y.mean((2, 3, 4), keepdim=True)
            y = y * self.excite(self.squeeze(means).relu()).sigmoid()
        return self.act(self.down(self.act(y)) + self.skip(x))


class X3d(nn.Module):
    """X3D: expanded along width, depth and time."""

    def __init__(self, *, width: int, depth: float, expansion: float, se: bool, act: str) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            Convolution(3, width, (1, 3, 3), stride=(1, 2, 2), act="none", dimensions=3),
            Convolution(width, width, (5, 1, 1), groups=width, act=act, dimensions=3),
        ]
        channels = width
        for stage, base in enumerate((1, 2, 5, 3)):
            wide = round_width(width * 2**stage)
            for i in range(max(1, round(base * depth))):
                layers.append(
                    X3dBlock(
                        channels,
                        wide,
                        stride=2 if i == 0 else 1,
                        expansion=expansion,
                        se=se and i % 2 == 0,
                        act=act,
                    )
                )
                channels = wide
        layers.append(
            Convolution(channels, round_width(channels * expansion), 1, act=act, dimensions=3)
        )
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(round_width(channels * expansion), 2048),
            nn.ReLU(),
            nn.Linear(2048, 400),
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))
