"""Family "weather_unet": encoder-decoders over large grids with many fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, InputTensor, Parameters, Scalar, Sizes
from dataset.families.grids import rotated, spread

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


FAMILY = Family(
    name="weather_unet",
    kind="model",
    about="U-Nets (Ronneberger et al. 2015) over grids of weather and climate fields",
    grid=grid,
    sizes=lambda p: rotated(GRIDS, p, 4),
    build=build,
    inputs=fields,
    images=True,
    largest_batch=128,
)
