"""Families that join channels: "densenet", "inception", "squeezenet", "shufflenet", "ghostnet"."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, image_sizes, numbers, spread

if TYPE_CHECKING:
    import torch


def densenet_grid() -> list[dict[str, Scalar]]:
    """Return 121, 169, 201 and 161 and members of other growth, depth and bottleneck."""
    usual: dict[str, Scalar] = {"bottleneck": 4, "compression": 0.5, "act": "relu", "kernel": 3}
    published = [
        {**usual, "depths": depths, "growth": growth}
        for depths, growth in (
            ("6-12-24-16", 32),
            ("6-12-32-32", 32),
            ("6-12-48-32", 32),
            ("6-12-36-24", 48),
        )
    ]
    others = spread(
        22,
        depths=("4-4-4-4", "6-6-6-6", "4-8-12-8", "6-12-16-12", "6-12-24-16"),
        growth=(12, 16, 24, 32, 40),
        bottleneck=(4, 0, 2),
        compression=(0.5, 0.75, 1.0),
        act=("relu", "silu", "elu"),
        kernel=(3, 5),
    )
    return [*published, *others]


def inception_grid() -> list[dict[str, Scalar]]:
    """Return two- and three-stage members with whole, doubled and factored large kernels."""
    return spread(
        24,
        width=(24, 32, 48, 64, 96),
        depths=("2-3-2", "2-5-2", "1-2-1", "3-4-3", "2-2"),
        style=("whole", "twice", "factored"),
        pool=("max", "avg"),
        act=("relu", "leaky_relu", "silu"),
    )


def squeezenet_grid() -> list[dict[str, Scalar]]:
    """Return members of other widths, depths and squeezes."""
    return spread(
        24,
        width=(64, 96, 128, 160, 192, 256),
        depth=(1, 2, 3),
        squeeze=(0.125, 0.25, 0.5),
        share=(0.5, 0.25, 0.75),
        act=("relu", "elu", "silu"),
        bypass=(False, True),
        stem=(3, 7),
    )


def shufflenet_grid() -> list[dict[str, Scalar]]:
    """Return 0.5× to 2× and members of other depths and kernels."""
    return spread(
        24,
        width=(48, 80, 116, 152, 176, 244, 32),
        depths=("4-8-4", "2-4-2", "3-6-3", "6-12-6"),
        kernel=(3, 5, 7),
        act=("relu", "hardswish", "silu"),
        se=(False, True),
        features=(1024, 2048, 512),
    )


def ghostnet_grid() -> list[dict[str, Scalar]]:
    """Return members of many widths, ratios and expansions."""
    return spread(
        24,
        width=(0.5, 0.75, 1.0, 1.3, 1.6, 2.0),
        depth=(2, 3, 4, 1),
        expansion=(3.0, 4.0, 6.0, 2.0),
        ratio=(2, 3, 4),
        kernel=(3, 5),
        se=(True, False),
        act=("relu", "silu"),
    )


def _build(networks: str, name: str) -> Callable[[Parameters, Sizes], torch.nn.Module]:
    def build(p: Parameters, sizes: Sizes) -> torch.nn.Module:
        home = import_module(f"dataset.families.networks.{networks}")
        depths = {"depths": numbers(str(p["depths"]))} if "depths" in p else {}
        module: torch.nn.Module = getattr(home, name)(**{**p, **depths})
        return module

    return build


def _family(
    name: str, network: str, about: str, grid: Callable[[], list[dict[str, Scalar]]]
) -> Family:
    return Family(
        name=name,
        kind="model",
        about=about,
        grid=grid,
        sizes=image_sizes,
        build=_build(*network.split(".")),
        inputs=image,
        images=True,
    )


DENSENET = _family(
    "densenet", "dense_blocks.DenseNet", "DenseNet (Huang et al. 2017)", densenet_grid
)
INCEPTION = _family(
    "inception",
    "dense_blocks.Inception",
    "after GoogLeNet and its successors (Szegedy 2015)",
    inception_grid,
)
SQUEEZENET = _family(
    "squeezenet", "dense_blocks.SqueezeNet", "SqueezeNet (Iandola et al. 2016)", squeezenet_grid
)
SHUFFLENET = _family(
    "shufflenet", "cheap_features.ShuffleNet", "ShuffleNet v2 (Ma et al. 2018)", shufflenet_grid
)
GHOSTNET = _family(
    "ghostnet", "cheap_features.GhostNet", "after GhostNet (Han et al. 2020)", ghostnet_grid
)
