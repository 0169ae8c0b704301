"""Families whose output is a map: "super_resolution", "segmentation" and "detection"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, numbers, rotate_choices, spread

if TYPE_CHECKING:
    import torch

SMALL = ((64, 64), (48, 48), (96, 96), (128, 128), (180, 320), (72, 128))
SCENES = ((256, 256), (512, 512), (320, 320), (512, 1024), (384, 384), (480, 640), (224, 224))
DEPTHS = ("2-2-2-2", "1-1-1-1", "3-4-6-3", "1-2-3-1")


def resolution_grid() -> list[dict[str, Scalar]]:
    """Return plain, residual, attentive and dense members that enlarge 2 to 4 times."""
    return spread(
        26,
        style=("residual", "plain", "attention", "dense"),
        width=(16, 32, 48, 64, 96, 128, 180),
        depth=(2, 4, 8, 12, 16, 24),
        factor=(2, 3, 4),
        act=("relu", "leaky_relu", "gelu"),
        up=("shuffle", "transposed", "nearest"),
    )


def resolution(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.dense_outputs import SuperResolution

    return SuperResolution(**p)


def segmentation_grid() -> list[dict[str, Scalar]]:
    """Return four kinds of heads over three kinds of backbones."""
    return spread(
        26,
        backbone=("basic", "bottleneck", "inverted"),
        width=(16, 24, 32, 48, 64),
        depths=DEPTHS,
        head=("fcn", "dilated", "pooled", "pyramid"),
        head_width=(64, 128, 256),
        classes=(19, 21, 150),
        act=("relu", "silu", "relu6"),
    )


def segmentation(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.dense_outputs import Segmentation

    return Segmentation(**{**p, "depths": numbers(str(p["depths"]))})


def detection_grid() -> list[dict[str, Scalar]]:
    """Return one-stage detectors with and without anchors."""
    return spread(
        26,
        backbone=("basic", "inverted", "bottleneck"),
        width=(16, 24, 32, 48, 64),
        depths=DEPTHS,
        pyramid=(64, 96, 128, 256),
        head_depth=(1, 2, 3, 4),
        anchors=(1, 9, 3),
        classes=(80, 20, 91),
        extra=(0, 2, 1),
        head_norm=("none", "group", "batch"),
        act=("relu", "silu", "relu6"),
    )


def detection(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.dense_outputs import Detector

    return Detector(**{**p, "depths": numbers(str(p["depths"]))})


SUPER_RESOLUTION = Family(
    name="super_resolution",
    kind="model",
    about="after ESPCN (Shi et al. 2016), EDSR (Lim et al. 2017) and RCAN (Zhang et al. 2018)",
    grid=resolution_grid,
    sizes=lambda p: rotate_choices(SMALL, p, 4),
    build=resolution,
    inputs=image,
    images=True,
    largest_batch=256,
)
SEGMENTATION = Family(
    name="segmentation",
    kind="model",
    about="after FCN (Long 2015), DeepLab v3+ (Chen 2018), PSPNet (Zhao 2017), UPerNet (Xiao 2018)",
    grid=segmentation_grid,
    sizes=lambda p: rotate_choices(SCENES, p, 4),
    build=segmentation,
    inputs=image,
    images=True,
    largest_batch=256,
)
DETECTION = Family(
    name="detection",
    kind="model",
    about="after RetinaNet (Lin et al. 2017) and FCOS (Tian et al. 2019), dense outputs only",
    grid=detection_grid,
    sizes=lambda p: rotate_choices(SCENES, p, 4),
    build=detection,
    inputs=image,
    images=True,
    largest_batch=256,
)
