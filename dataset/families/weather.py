"""Families over large grids with many fields: "weather_unet" and "weather_transformer"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, InputTensor, Parameters, Scalar, Sizes
from dataset.families.grids import rotate_choices, spread

if TYPE_CHECKING:
    import torch

GRIDS = ((96, 120), (128, 256), (361, 720), (256, 256), (181, 360), (512, 512), (64, 128))


def grid() -> list[dict[str, Scalar]]:
    """Return U-Nets of 10 to 69 fields, three to five levels."""
    return spread(
        28,
        channels=(17, 14, 10, 69, 34),
        outputs=(1, 14, 4, 69),
        width=(16, 24, 32, 48, 64),
        levels=(4, 3, 5),
        depth=(2, 1, 3),
        kernel=(3, 5, 7),
        act=("relu", "leaky_relu", "gelu", "silu"),
        norm=("none", "batch", "group"),
        down=("max", "stride", "avg"),
        up=("transposed", "bilinear", "nearest"),
        residual=(False, True),
    )


def build(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.unet import FieldUNet

    return FieldUNet(**p)


def fields(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return fields on a grid."""
    return (InputTensor("fields", (int(p["channels"]), *sizes)),)


def transformer_grid() -> list[dict[str, Scalar]]:
    """Return members with patches of 4 to 16 grid points."""
    return spread(
        24,
        lambda p: int(p["width"]) % int(p["heads"]) == 0,
        channels=(17, 14, 10, 69, 34),
        outputs=(1, 14, 4, 69),
        patch=(8, 16, 4),
        width=(128, 192, 256, 384, 512, 768),
        depth=(4, 6, 8, 12),
        heads=(4, 6, 8, 12),
        mlp_ratio=(4.0, 2.0),
        act=("gelu", "swiglu", "relu"),
        order=("pre", "parallel"),
    )


def transformer_sizes(p: Parameters) -> list[Sizes]:
    """Return grids of at most about 12,000 patches."""
    patch = int(p["patch"])
    return [g for g in rotate_choices(GRIDS, p, len(GRIDS)) if g[0] * g[1] / patch**2 < 12_000][:4]


def transformer(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the transformer, with a position table for the grid."""
    from dataset.families.networks.signals import FieldTransformer

    return FieldTransformer(grid=(sizes[0], sizes[1]), **p)


WEATHER_TRANSFORMER = Family(
    name="weather_transformer",
    kind="model",
    about="transformers over patches of weather fields (after Nguyen et al. 2023)",
    grid=transformer_grid,
    sizes=transformer_sizes,
    build=transformer,
    inputs=fields,
    images=True,
    largest_batch=128,
)
WEATHER_UNET = Family(
    name="weather_unet",
    kind="model",
    about="U-Nets (Ronneberger et al. 2015) over grids of weather and climate fields",
    grid=grid,
    sizes=lambda p: rotate_choices(GRIDS, p, 4),
    build=build,
    inputs=fields,
    images=True,
    largest_batch=128,
)
