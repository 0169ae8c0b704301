"""Networks of norm–mixer–norm–MLP blocks over a map that shrinks in stages.

PoolFormer (Yu et al. 2022) mixes by pooling, ConvNeXt (Liu et al. 2022) by a depthwise
convolution, and Visformer (Chen et al. 2021) by convolutions first and attention later.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dataset.families.networks.layers import Attention, ChannelNorm, ImageHead, activation, norm
from dippm.model.networks.diffusion_unet import groups_that_fit


class Pooling(nn.Module):
    """Mean of the neighbourhood minus the value itself."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(kernel, 1, kernel // 2, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.pool(x) - x


class MapAttention(Attention):
    """Attention between all positions of a map (batch, channels, height, width)."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:  # noqa: D102
        mixed = super().forward(x.flatten(2).transpose(1, 2))
        return mixed.transpose(1, 2).unflatten(2, x.shape[2:])


class ConvolutionMixer(nn.Sequential):
    """1×1, grouped convolution, 1×1."""

    def __init__(self, width: int, kernel: int, groups: int, act: str) -> None:
        groups = groups_that_fit(width, groups)
        super().__init__(
            nn.Conv2d(width, width, 1),
            activation(act),
            nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups),
            activation(act),
            nn.Conv2d(width, width, 1),
        )


def mixer(kind: str, width: int, *, kernel: int, heads: int, groups: int, act: str) -> nn.Module:
    """Return a spatial mixer: "pool", "attention", "convolution" or "identity"."""
    if kind == "pool":
        return Pooling(kernel)
    if kind == "attention":
        return MapAttention(width, heads)
    if kind == "convolution":
        return ConvolutionMixer(width, kernel, groups, act)
    return nn.Identity()


class Block(nn.Module):
    """x + scale · mixer(norm(x)), then x + scale · mlp(norm(x)) by 1×1 convolutions."""

    def __init__(
        self,
        width: int,
        mixing: nn.Module,
        *,
        mlp_ratio: float,
        act: str,
        norm_name: str,
        scaled: bool,
    ):
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.norm1, self.norm2 = norm(norm_name, width), norm(norm_name, width)
        self.mixing = mixing
        self.mlp = nn.Sequential(
            nn.Conv2d(width, hidden, 1), activation(act), nn.Conv2d(hidden, width, 1)
        )
        self.scales = nn.ParameterList(
            nn.Parameter(torch.empty(width, 1, 1)) for _ in range(2 if scaled else 0)
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        if not len(self.scales):
            x = x + self.mixing(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = x + self.scales[0] * self.mixing(self.norm1(x))
        return x + self.scales[1] * self.mlp(self.norm2(x))


class MetaFormer(nn.Module):
    """Four stages, each with its own mixer."""

    def __init__(
        self,
        *,
        depths: list[int],
        widths: list[int],
        mixers: list[str],
        kernel: int,
        head_width: int,
        groups: int,
        mlp_ratio: float,
        act: str,
        norm_name: str,
        scaled: bool,
        stem: int = 4,
    ):
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for depth, width, kind in zip(depths, widths, mixers, strict=True):
            stride = stem if channels == 3 else 2
            size = stride + 3 if stem == 4 and channels == 3 else stride + 1
            layers.append(nn.Conv2d(channels, width, size, stride=stride, padding=size // 2))
            for _ in range(depth):
                heads = groups_that_fit(width, max(1, width // head_width))
                mixing = mixer(kind, width, kernel=kernel, heads=heads, groups=groups, act=act)
                layers.append(
                    Block(
                        width,
                        mixing,
                        mlp_ratio=mlp_ratio,
                        act=act,
                        norm_name=norm_name,
                        scaled=scaled,
                    )
                )
            channels = width
        self.stages = nn.Sequential(*layers)
        self.norm = norm(norm_name, channels)
        self.head = ImageHead(channels)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.norm(self.stages(x)))


class ResponseNorm(nn.Module):
    """Channels relative to their mean response, from ConvNeXt v2 (Woo et al. 2023)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        response = x.square().sum((1, 2), keepdim=True).sqrt()
        relative = response / (response.mean(-1, keepdim=True) + 1e-6)
        return x + x * relative * self.weight + self.bias


class ConvNextBlock(nn.Module):
    """Depthwise convolution, norm, and an MLP with channels last."""

    def __init__(self, width: int, *, kernel: int, mlp_ratio: float, act: str, response: bool):
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.mix = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.act = nn.Linear(width, hidden), activation(act)
        self.response = ResponseNorm(hidden) if response else nn.Identity()
        self.down = nn.Linear(hidden, width)
        self.scale = None if response else nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        y = self.down(self.response(self.act(self.up(y))))
        if self.scale is not None:
            y = y * self.scale
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """ConvNeXt: stem of 4×4 patches, stages between 2×2 strides."""

    def __init__(
        self,
        *,
        depths: list[int],
        width: int,
        kernel: int,
        mlp_ratio: float,
        act: str,
        response: bool,
    ):
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=4), ChannelNorm(width)]
        for stage, depth in enumerate(depths):
            wide = width << stage
            if stage:
                layers += [ChannelNorm(wide // 2), nn.Conv2d(wide // 2, wide, 2, stride=2)]
            layers += [
                ConvNextBlock(wide, kernel=kernel, mlp_ratio=mlp_ratio, act=act, response=response)
                for _ in range(depth)
            ]
        self.stages = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(wide)
        self.head = nn.Linear(wide, 1000)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.head(self.norm(self.stages(x).mean((2, 3))))
