"""Family "random_cells": architectures such as a search would propose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, image_sizes, spread

if TYPE_CHECKING:
    import torch


def grid() -> list[dict[str, Scalar]]:
    """Return cells of 3 to 10 nodes, repeated or drawn anew."""
    members = spread(
        40,
        nodes=(4, 3, 5, 7, 10),
        width=(16, 24, 32, 48, 64),
        stages=(3, 4, 2),
        repeats=(2, 1, 3, 5),
        fresh=(True, False),
        act=("relu", "silu", "hardswish"),
    )
    return [{"seed": seed, **member} for seed, member in enumerate(members)]


def build(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network, with wiring determined by the seed."""
    from dataset.families.networks.random_cells import RandomCells

    return RandomCells(**p)


FAMILY = Family(
    name="random_cells",
    kind="model",
    about="random directed graphs of operators (after Zoph 2018 and Xie 2019)",
    grid=grid,
    sizes=image_sizes,
    build=build,
    inputs=image,
    images=True,
)
