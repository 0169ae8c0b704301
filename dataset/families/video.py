"""Families over clips: "resnet3d" and "x3d"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, InputTensor, Parameters, Scalar, Sizes
from dataset.families.grids import numbers, rotate_choices, spread

if TYPE_CHECKING:
    import torch

CLIPS = ((8, 112, 112), (16, 112, 112), (4, 224, 224), (16, 64, 64), (8, 160, 160), (32, 96, 96))


def resnet3d_grid() -> list[dict[str, Scalar]]:
    """Return full, factored (2+1)D, mixed and framewise members."""
    return spread(
        24,
        kind=("full", "factored", "mixed", "frames"),
        depths=("1-1-1-1", "2-2-2-2", "3-4-6-3", "1-2-2-1"),
        width=(16, 24, 32, 48, 64),
        act=("relu", "silu", "leaky_relu"),
        stem=(3, 1, 5),
    )


def resnet3d(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.video import ResNet3d

    return ResNet3d(**{**p, "depths": numbers(str(p["depths"]))})


def x3d_grid() -> list[dict[str, Scalar]]:
    """Return XS to L and members of other widths and expansions."""
    return spread(
        24,
        width=(8, 16, 24, 32, 40),
        depth=(0.5, 1.0, 2.2, 1.5, 3.0),
        expansion=(2.25, 3.0, 1.5, 4.0),
        se=(True, False),
        act=("silu", "relu", "hardswish"),
    )


def x3d(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.video import X3d

    return X3d(**p)


def clip(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return a clip with three channels."""
    return (InputTensor("clip", (3, *sizes)),)


RESNET3D = Family(
    name="resnet3d",
    kind="model",
    about="3-D ResNets, R(2+1)D and mixed ones (Tran et al. 2018)",
    grid=resnet3d_grid,
    sizes=lambda p: rotate_choices(CLIPS, p, 4),
    build=resnet3d,
    inputs=clip,
    largest_batch=128,
)
X3D = Family(
    name="x3d",
    kind="model",
    about="X3D, depthwise 3-D convolutions (Feichtenhofer 2020)",
    grid=x3d_grid,
    sizes=lambda p: rotate_choices(CLIPS, p, 4),
    build=x3d,
    inputs=clip,
    largest_batch=128,
)
