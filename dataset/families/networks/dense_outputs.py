"""Networks whose output is a map: super-resolution, segmentation and detection."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dataset.families.networks.inverted import Inverted, Stage
from dataset.families.networks.layers import Convolution, SqueezeExcite, activation, norm
from dataset.families.networks.resnet import Basic, Bottleneck


class PlainResidual(nn.Module):
    """Two convolutions without norm, optionally with channel attention (Lim 2017, Zhang 2018)."""

    def __init__(self, width: int, act: str, *, attention: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            activation(act),
            nn.Conv2d(width, width, 3, padding=1),
            *([SqueezeExcite(width, max(4, width // 16))] if attention else []),
        )

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return x + self.body(x)


class SuperResolution(nn.Module):
    """Features at low resolution, then pixels from channels.

    Styles: "plain" stacks convolutions (ESPCN, Shi et al. 2016), "residual" is like EDSR,
    "attention" adds channel attention, "dense" joins the features of all blocks.
    """

    def __init__(self, *, style: str, width: int, depth: int, factor: int, act: str, up: str):
        super().__init__()
        self.style, self.up, self.factor = style, up, factor
        self.enter = nn.Conv2d(3, width, 5 if style == "plain" else 3, padding="same")
        self.blocks = nn.ModuleList(
            Convolution(width, width, 3, norm_name="none", act=act)
            if style == "plain"
            else PlainResidual(width, act, attention=style == "attention")
            for _ in range(depth)
        )
        joined = width * depth if style == "dense" else width
        self.fuse = nn.Conv2d(joined, width, 1 if style == "dense" else 3, padding="same")
        outs = 3 * factor**2 if up == "shuffle" else 3
        if up == "transposed":
            self.leave: nn.Module = nn.ConvTranspose2d(width, 3, factor, stride=factor)
        else:
            self.leave = nn.Conv2d(width, outs, 3, padding=1)
        self.shuffle = nn.PixelShuffle(factor)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        first = y = self.enter(x)
        kept = []
        for block in self.blocks:
            y = block(y)
            kept.append(y)
        y = self.fuse(torch.cat(kept, 1) if self.style == "dense" else y)
        y = y if self.style == "plain" else y + first
        if self.up == "nearest":
            y = functional.interpolate(y, scale_factor=float(self.factor), mode="nearest")
        y = self.leave(y)
        return self.shuffle(y) if self.up == "shuffle" else y


class Backbone(nn.Module):
    """Maps at 1/4, 1/8, 1/16 and 1/32 of the image, or dilated in place of the last strides."""

    def __init__(self, kind: str, width: int, depths: list[int], act: str) -> None:
        super().__init__()
        channels = width
        self.stem = nn.Sequential(
            Convolution(3, width, 3, stride=2, act=act),
            Convolution(width, width, 3, stride=2, act=act),
        )
        self.stages = nn.ModuleList()
        self.widths: list[int] = []
        for stage, depth in enumerate(depths):
            layers: list[nn.Module] = []
            for i in range(depth):
                stride = 2 if stage and i == 0 else 1
                block, channels = self._block(kind, channels, width << stage, stride, act)
                layers.append(block)
            self.stages.append(nn.Sequential(*layers))
            self.widths.append(channels)

    @staticmethod
    def _block(
        kind: str, channels: int, width: int, stride: int, act: str
    ) -> tuple[nn.Module, int]:
        if kind == "inverted":
            stage = Stage("inverted", width, 1, stride, act=act, expansion=4.0)
            return Inverted(channels, width, stride, stage), width
        if kind == "bottleneck":
            return Bottleneck(channels, width, stride, act=act, se=False), 4 * width
        return Basic(channels, width, stride, act=act, se=False), width

    def forward(self, x: Tensor) -> list[Tensor]:  # noqa: D102
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps


def resize_like(x: Tensor, like: Tensor) -> Tensor:
    """Return a map interpolated to the size of another."""
    return functional.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)


class Pyramid(nn.Module):
    """Maps of one width from top to bottom (Lin et al. 2017), and further down if `extra`."""

    def __init__(self, widths: list[int], width: int, *, extra: int = 0, norm_name: str) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(w, width, 1) for w in widths)
        self.smooth = nn.ModuleList(
            Convolution(width, width, 3, norm_name=norm_name, act="none") for _ in widths
        )
        self.extra = nn.ModuleList(
            nn.Conv2d(width, width, 3, stride=2, padding=1) for _ in range(extra)
        )

    def forward(self, maps: list[Tensor]) -> list[Tensor]:  # noqa: D102
        top = self.lateral[-1](maps[-1])
        merged = [top]
        for lateral, x in zip(list(self.lateral)[-2::-1], maps[-2::-1], strict=True):
            top = lateral(x) + functional.interpolate(top, size=x.shape[2:], mode="nearest")
            merged.insert(0, top)
        maps = [smooth(x) for smooth, x in zip(self.smooth, merged, strict=True)]
        for shrink in self.extra:
            maps.append(shrink(maps[-1]))
        return maps


class DilatedPaths(nn.Module):
    """Parallel dilated convolutions, and the mean of the map (Chen et al. 2017)."""

    def __init__(self, channels: int, width: int, act: str) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            Convolution(channels, width, 1 if rate == 1 else 3, dilation=rate, act=act)
            for rate in (1, 6, 12, 18)
        )
        self.mean = nn.Sequential(nn.Conv2d(channels, width, 1), activation(act))
        self.fuse = Convolution(5 * width, width, 1, act=act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        mean = self.mean(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        return self.fuse(torch.cat([*(path(x) for path in self.paths), mean], 1))


class PooledPyramid(nn.Module):
    """Means over grids of 1, 2, 3 and 6 cells (Zhao et al. 2017)."""

    def __init__(self, channels: int, width: int, act: str) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(n), nn.Conv2d(channels, width, 1), activation(act))
            for n in (1, 2, 3, 6)
        )
        self.fuse = Convolution(channels + 4 * width, width, 3, act=act)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.fuse(torch.cat([x, *(resize_like(path(x), x) for path in self.paths)], 1))


class Segmentation(nn.Module):
    """A backbone and a head: "fcn", "dilated" (DeepLab v3+), "pooled" (PSPNet) or "pyramid"."""

    def __init__(
        self,
        *,
        backbone: str,
        width: int,
        depths: list[int],
        head: str,
        head_width: int,
        classes: int,
        act: str,
    ):
        super().__init__()
        self.backbone = Backbone(backbone, width, depths, act)
        widths = self.backbone.widths
        self.kind = head
        if head == "fcn":
            self.head: nn.Module = Convolution(widths[-1], head_width, 3, act=act)
        elif head == "dilated":
            self.head = DilatedPaths(widths[-1], head_width, act)
            self.low = Convolution(widths[0], 48, 1, act=act)
            self.join = Convolution(head_width + 48, head_width, 3, act=act)
        elif head == "pooled":
            self.head = PooledPyramid(widths[-1], head_width, act)
        else:
            self.head = Pyramid(widths, head_width, norm_name="batch")
            self.join = Convolution(head_width * len(widths), head_width, 3, act=act)
        self.classify = nn.Conv2d(head_width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        maps = self.backbone(x)
        if self.kind == "pyramid":
            levels = self.head(maps)
            y = self.join(torch.cat([resize_like(level, levels[0]) for level in levels], 1))
        else:
            y = self.head(maps[-1])
        if self.kind == "dilated":
            y = self.join(torch.cat([resize_like(y, maps[0]), self.low(maps[0])], 1))
        return resize_like(self.classify(y), x)


class Detector(nn.Module):
    """Backbone, pyramid, and heads shared by all levels (RetinaNet, Lin 2017; FCOS, Tian 2019).

    The output is dense: scores and boxes at every position, without a selection.
    """

    def __init__(
        self,
        *,
        backbone: str,
        width: int,
        depths: list[int],
        pyramid: int,
        head_depth: int,
        anchors: int,
        classes: int,
        extra: int,
        head_norm: str,
        act: str,
    ):
        super().__init__()
        self.backbone = Backbone(backbone, width, depths, act)
        self.pyramid = Pyramid(self.backbone.widths[1:], pyramid, extra=extra, norm_name="none")
        self.scores = self._head(pyramid, anchors * classes, head_depth, head_norm, act)
        self.boxes = self._head(pyramid, anchors * 4, head_depth, head_norm, act)

    @staticmethod
    def _head(width: int, outs: int, depth: int, head_norm: str, act: str) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1)]
            layers += [norm(head_norm, width)] if head_norm != "none" else []
            layers += [activation(act)]
        return nn.Sequential(*layers, nn.Conv2d(width, outs, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        levels = self.pyramid(self.backbone(x)[1:])
        maps = [torch.cat([self.scores(x), self.boxes(x)], 1).flatten(2) for x in levels]
        return torch.cat(maps, 2)
