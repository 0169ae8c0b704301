"""Family "regnet"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, image_sizes, spread

if TYPE_CHECKING:
    import torch


def grid() -> list[dict[str, Scalar]]:
    """Return members of 200 MFLOP to some 10 GFLOP, with and without squeeze-excite."""
    return spread(
        28,
        first=(24, 32, 48, 64, 80, 112),
        slope=(12.0, 20.0, 28.0, 36.0, 45.0),
        step=(2.1, 2.3, 2.5, 2.8),
        depth=(10, 13, 16, 19, 22),
        group=(8, 16, 24, 48),
        se=(False, True),
        act=("relu", "silu"),
    )


def build(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.regnet import RegNet

    return RegNet(**p)


FAMILY = Family(
    name="regnet",
    kind="model",
    about="RegNet X and Y (Radosavovic et al. 2020)",
    grid=grid,
    sizes=image_sizes,
    build=build,
    inputs=image,
    images=True,
)
