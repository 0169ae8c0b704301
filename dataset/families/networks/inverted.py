"""Networks of inverted residuals: MobileNet v1 to v3, MnasNet, EfficientNet v1 and v2."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from dataset.families.networks.layers import Convolution, ImageHead, SqueezeExcite, round_width


@dataclass(frozen=True)
class Stage:
    """Blocks of one width. `kind` is "separable" (v1), "inverted" or "fused"."""

    kind: str
    width: int
    depth: int
    stride: int
    kernel: int = 3
    expansion: float = 6.0
    se: float = 0.0
    act: str = "relu6"


class Separable(nn.Sequential):
    """Depthwise then 1×1 (Howard et al. 2017)."""

    def __init__(self, channels: int, width: int, stride: int, stage: Stage) -> None:
        super().__init__(
            Convolution(
                channels, channels, stage.kernel, stride=stride, groups=channels, act=stage.act
            ),
            Convolution(channels, width, 1, act=stage.act),
        )


class Inverted(nn.Module):
    """1×1 up, depthwise, optional squeeze-excite, 1×1 down (Sandler et al. 2018)."""

    def __init__(self, channels: int, width: int, stride: int, stage: Stage) -> None:
        super().__init__()
        inner = round_width(channels * stage.expansion)
        layers: list[nn.Module] = []
        if stage.kind == "fused":  # one full convolution for both (Tan and Le 2021)
            layers.append(Convolution(channels, inner, stage.kernel, stride=stride, act=stage.act))
        else:
            if stage.expansion != 1:
                layers.append(Convolution(channels, inner, 1, act=stage.act))
            else:
                inner = channels
            layers.append(
                Convolution(inner, inner, stage.kernel, stride=stride, groups=inner, act=stage.act)
            )
        if stage.se:
            gate = "hardsigmoid" if stage.act == "hardswish" else "sigmoid"
            squeezed = round_width(channels * stage.se, 4)
            act = "silu" if stage.act == "silu" else "relu"
            layers.append(SqueezeExcite(inner, squeezed, gate=gate, act=act))
        layers.append(Convolution(inner, width, 1, act="none"))
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and channels == width

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return x + self.body(x) if self.residual else self.body(x)


class InvertedNet(nn.Module):
    """Stem, stages, a 1×1 convolution to the features, head."""

    def __init__(self, stages: list[Stage], *, stem: int, features: int, hidden: int = 0) -> None:
        super().__init__()
        act = stages[-1].act
        layers: list[nn.Module] = [Convolution(3, stem, 3, stride=2, act=stages[0].act)]
        channels = stem
        for stage in stages:
            block = Separable if stage.kind == "separable" else Inverted
            for i in range(stage.depth):
                layers.append(block(channels, stage.width, stage.stride if i == 0 else 1, stage))
                channels = stage.width
        if features:
            layers.append(Convolution(channels, features, 1, act=act))
        self.features = nn.Sequential(*layers)
        self.head = ImageHead(features or channels, hidden=hidden, act=act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.features(x))
