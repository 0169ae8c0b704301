"""Family "vgg": plain stacks of 3×3 convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, image_sizes, numbers, spread

if TYPE_CHECKING:
    import torch


def grid() -> list[dict[str, Scalar]]:
    """Return VGG-11 to VGG-19 and members of other widths, norms and heads."""
    deep = ("1-1-2-2-2", "2-2-2-2-2", "2-2-3-3-3", "2-2-4-4-4")
    classics: list[dict[str, Scalar]] = [
        {"depths": d, "width": 64, "norm": n, "act": "relu", "hidden": 4096, "pool": "max"}
        for d in deep
        for n in ("none", "batch")
    ]
    others = spread(
        20,
        depths=(*deep, "1-1-1-1-1", "1-2-3-4-3"),
        width=(16, 24, 32, 48, 96),
        norm=("batch", "none", "group", "instance"),
        act=("relu", "leaky_relu", "gelu", "elu"),
        hidden=(0, 512, 1024, 2048),
        pool=("max", "avg"),
    )
    return [*classics, *others]


def build(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.vgg import Vgg

    return Vgg(**{**p, "depths": numbers(str(p["depths"]))})


FAMILY = Family(
    name="vgg",
    kind="model",
    about="VGG, with and without norm (Simonyan and Zisserman 2015)",
    grid=grid,
    sizes=image_sizes,
    build=build,
    inputs=image,
    images=True,
)
