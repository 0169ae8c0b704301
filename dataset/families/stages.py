"""Families of four stages of blocks: "poolformer", "visformer", "convnext" and "swin"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, image_sizes, number, numbers, spread

if TYPE_CHECKING:
    import torch


def poolformer_grid() -> list[dict[str, Scalar]]:
    """Return S12 to M36 and members with wider pooling, or other mixers in late stages."""
    usual: dict[str, Scalar] = {
        "kernel": 3,
        "mlp_ratio": 4.0,
        "act": "gelu",
        "norm": "group",
        "scaled": True,
        "late": "pool",
    }
    published = [
        {**usual, "depths": depths, "widths": widths}
        for depths, widths in (
            ("2-2-6-2", "64-128-320-512"),
            ("4-4-12-4", "64-128-320-512"),
            ("6-6-18-6", "64-128-320-512"),
            ("6-6-18-6", "96-192-384-768"),
        )
    ]
    others = spread(
        22,
        depths=("1-1-3-1", "2-2-4-2", "2-2-6-2", "3-3-9-3", "2-4-8-2"),
        widths=("32-64-160-256", "48-96-192-384", "64-128-256-512", "64-128-320-512"),
        kernel=(3, 5, 7),
        mlp_ratio=(2.0, 3.0, 4.0),
        act=("gelu", "relu", "silu"),
        norm=("group", "layer", "batch"),
        scaled=(True, False),
        late=("pool", "attention", "identity"),
    )
    return [*published, *others]


def poolformer(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return PoolFormer, with the mixer `late` in its last two stages."""
    from dataset.families.networks.metaformer import MetaFormer

    late = str(p["late"])
    return MetaFormer(
        depths=numbers(str(p["depths"])),
        widths=numbers(str(p["widths"])),
        mixers=["pool", "pool", late, late],
        kernel=int(p["kernel"]),
        head_width=32,
        groups=1,
        mlp_ratio=float(p["mlp_ratio"]),
        act=str(p["act"]),
        norm_name=str(p["norm"]),
        scaled=bool(p["scaled"]),
    )


def visformer_grid() -> list[dict[str, Scalar]]:
    """Return tiny and small, and members of other widths, depths and kernels."""
    return spread(
        24,
        depths=("7-4-4", "3-2-2", "5-3-3", "4-6-2", "2-2-6"),
        widths=("96-192-384", "192-384-768", "64-128-256", "128-256-512", "96-224-448"),
        kernel=(3, 5),
        groups=(8, 1, 32),
        head_width=(32, 64),
        mlp_ratio=(4.0, 2.0, 3.0),
        act=("gelu", "relu", "hardswish"),
        norm=("batch", "layer"),
    )


def visformer(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return Visformer: convolutions in the first stage, attention in the others."""
    from dataset.families.networks.metaformer import MetaFormer

    return MetaFormer(
        depths=numbers(str(p["depths"])),
        widths=numbers(str(p["widths"])),
        mixers=["convolution", "attention", "attention"],
        kernel=int(p["kernel"]),
        head_width=int(p["head_width"]),
        groups=int(p["groups"]),
        mlp_ratio=float(p["mlp_ratio"]),
        act=str(p["act"]),
        norm_name=str(p["norm"]),
        scaled=False,
        stem=8,
    )


def convnext_grid() -> list[dict[str, Scalar]]:
    """Return atto to large of both versions, and members of other kernels and ratios."""
    usual: dict[str, Scalar] = {"kernel": 7, "mlp_ratio": 4.0, "act": "gelu"}
    published = [
        {**usual, "depths": depths, "width": width, "response": response}
        for response in (False, True)
        for depths, width in (
            ("2-2-6-2", 40),
            ("2-2-8-2", 64),
            ("3-3-9-3", 96),
            ("3-3-27-3", 128),
            ("3-3-27-3", 192),
        )
    ]
    others = spread(
        20,
        depths=("1-1-3-1", "2-2-6-2", "3-3-9-3", "2-2-12-2"),
        width=(24, 32, 48, 56, 72, 80, 96),
        kernel=(3, 5, 7, 9, 11),
        mlp_ratio=(2.0, 3.0, 4.0),
        act=("gelu", "relu", "silu"),
        response=(False, True),
    )
    return [*published, *others]


def convnext(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return ConvNeXt, optionally with the global response norm of version 2."""
    from dataset.families.networks.metaformer import ConvNext

    return ConvNext(**{**p, "depths": numbers(str(p["depths"]))})


def swin_grid() -> list[dict[str, Scalar]]:
    """Return tiny to large, and members of other windows, widths and depths."""
    usual: dict[str, Scalar] = {
        "patch": 4,
        "head_width": 32,
        "window": 7,
        "mlp_ratio": 4.0,
        "act": "gelu",
    }
    published = [
        {**usual, "width": width, "depths": depths}
        for width, depths in (
            (96, "2-2-6-2"),
            (96, "2-2-18-2"),
            (128, "2-2-18-2"),
            (192, "2-2-18-2"),
        )
    ]
    others = spread(
        23,
        patch=(4, 2, 8),
        width=(32, 48, 64, 96, 128),
        depths=("1-1-2-1", "2-2-2-2", "2-2-4-2", "2-2-6-2", "2-4-6-2"),
        head_width=(16, 32),
        window=(7, 8, 4, 12, 5),
        mlp_ratio=(4.0, 2.0, 3.0),
        act=("gelu", "relu", "silu"),
    )
    return [*published, *others]


def swin(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network, whose masks depend on the image size."""
    from dataset.families.networks.swin import Swin

    return Swin(image=(sizes[0], sizes[1]), **{**p, "depths": numbers(str(p["depths"]))})


def swin_sizes(p: Parameters) -> list[Sizes]:
    """Return image sizes whose patches fill whole windows in most stages."""
    unit = int(p["window"]) * int(p["patch"])
    sides = [n * unit for n in range(2, 33) if 96 <= n * unit <= 416] or [unit * 4]
    first = number(p)
    chosen = [sides[(first + i * 3) % len(sides)] for i in range(3)]
    return list(dict.fromkeys([(224, 224), *((s, s) for s in chosen)]))


POOLFORMER = Family(
    name="poolformer",
    kind="model",
    about="PoolFormer (Yu et al. 2022)",
    grid=poolformer_grid,
    sizes=image_sizes,
    build=poolformer,
    inputs=image,
    images=True,
)
VISFORMER = Family(
    name="visformer",
    kind="model",
    about="Visformer (Chen et al. 2021)",
    grid=visformer_grid,
    sizes=image_sizes,
    build=visformer,
    inputs=image,
    images=True,
)
CONVNEXT = Family(
    name="convnext",
    kind="model",
    about="ConvNeXt v1 and v2 (Liu et al. 2022, Woo et al. 2023)",
    grid=convnext_grid,
    sizes=image_sizes,
    build=convnext,
    inputs=image,
    images=True,
)
SWIN = Family(
    name="swin",
    kind="model",
    about="Swin transformers (Liu et al. 2021)",
    grid=swin_grid,
    sizes=swin_sizes,
    build=swin,
    inputs=image,
    images=True,
)
