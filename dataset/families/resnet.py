"""Family "resnet": basic and bottleneck blocks, grouped, wide and with squeeze-and-excitation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, image_sizes, numbers, spread

if TYPE_CHECKING:
    import torch


def grid() -> list[dict[str, Scalar]]:
    """Return plain, grouped and wide members of 10 to 152 layers."""
    plain: dict[str, Scalar] = {"groups": 1, "group_width": 64}
    classics: list[dict[str, Scalar]] = [
        {"block": block, "depths": depths, "width": 64, "act": "relu", "se": False, "stem": "7x7"}
        for block, depths in (
            ("basic", "2-2-2-2"),
            ("basic", "3-4-6-3"),
            ("bottleneck", "3-4-6-3"),
            ("bottleneck", "3-4-23-3"),
            ("bottleneck", "3-8-36-3"),
        )
    ]
    basic = spread(
        9,
        block=("basic",),
        depths=("1-1-1-1", "2-2-2-2", "3-4-6-3", "2-3-4-2", "4-6-10-4"),
        width=(16, 32, 48, 80, 96, 128),
        act=("relu", "leaky_relu", "silu"),
        se=(False, True),
        stem=("7x7", "deep"),
    )
    bottleneck = spread(
        18,
        lambda p: int(p["groups"]) * int(p["group_width"]) <= 256,
        block=("bottleneck",),
        depths=("1-1-1-1", "2-2-2-2", "3-4-6-3", "2-3-8-2", "3-4-14-3"),
        width=(32, 48, 64),
        groups=(1, 8, 32, 2),
        group_width=(64, 4, 8, 128, 16),
        act=("relu", "gelu", "silu"),
        se=(False, True),
        stem=("7x7", "deep"),
    )
    return [*({**plain, **p} for p in (*classics, *basic)), *bottleneck]


def build(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.resnet import ResNet

    return ResNet(**{**p, "depths": numbers(str(p["depths"]))})


FAMILY = Family(
    name="resnet",
    kind="model",
    about="ResNet, ResNeXt, wide and SE variants (He et al. 2016, Xie 2017, Hu 2018)",
    grid=grid,
    sizes=image_sizes,
    build=build,
    inputs=image,
    images=True,
)
