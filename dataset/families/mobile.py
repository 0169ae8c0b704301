"""Families "mobilenet", "mnasnet" and "efficientnet": three plans of inverted residuals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, image_sizes, spread

if TYPE_CHECKING:
    import torch


WIDTHS = (0.25, 0.35, 0.5, 0.75, 1.0, 1.25, 1.4, 1.6)


def mobilenet_grid() -> list[dict[str, Scalar]]:
    """Return versions 1 to 3 at many widths, depths, kernels and expansions."""
    return [
        *spread(8, version=(1,), width=WIDTHS, depth=(1.0, 0.5), kernel=(3, 5), act=("relu",)),
        *spread(
            12,
            version=(2,),
            width=WIDTHS,
            depth=(1.0, 0.5, 1.5),
            kernel=(3, 5),
            expansion=(6.0, 3.0, 4.0),
            act=("relu6", "silu"),
        ),
        *spread(
            12,
            version=(3,),
            width=WIDTHS,
            depth=(1.0, 0.5, 1.5),
            kernel=(5, 3, 7),
            se=(0.25, 0.0),
            act=("hardswish", "silu"),
        ),
    ]


def mobilenet(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return MobileNet v1 (Howard 2017), v2 (Sandler 2018) or v3-like (Howard 2019)."""
    from dataset.families.networks.inverted import InvertedNet, Stage

    width, depth, act = float(p["width"]), float(p["depth"]), str(p["act"])
    kernel = int(p["kernel"])
    if p["version"] == 1:
        rows = [(64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 6, 2), (1024, 2, 2)]
        stages = [
            Stage("separable", _wide(w, width), _deep(d, depth), s, kernel, act=act)
            for w, d, s in rows
        ]
        return InvertedNet(stages, stem=_wide(32, width), features=0)
    if p["version"] == 2:
        rows = [(24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)]
        expansion = float(p["expansion"])
        stages = [Stage("inverted", _wide(16, width), 1, 1, kernel, 1.0, act=act)] + [
            Stage("inverted", _wide(w, width), _deep(d, depth), s, kernel, expansion, act=act)
            for w, d, s in rows
        ]
        return InvertedNet(stages, stem=_wide(32, width), features=_wide(1280, max(1.0, width)))
    se = float(p["se"])
    blocks = [
        (16, 1, 1, 3, 1.0, 0.0, "relu"),
        (24, 2, 2, 3, 3.5, 0.0, "relu"),
        (40, 3, 2, kernel, 3.0, se, "relu"),
        (80, 4, 2, 3, 2.5, 0.0, act),
        (112, 2, 1, 3, 6.0, se, act),
        (160, 3, 2, kernel, 6.0, se, act),
    ]
    stages = [
        Stage("inverted", _wide(w, width), _deep(d, depth), s, k, e, r, a)
        for w, d, s, k, e, r, a in blocks
    ]
    hidden = _wide(1280, max(1.0, width))
    return InvertedNet(stages, stem=_wide(16, width), features=_wide(960, width), hidden=hidden)


def mnasnet_grid() -> list[dict[str, Scalar]]:
    """Return the A1 and B1 plans at many widths, with other kernels and expansions."""
    return spread(
        26,
        plan=("a1", "b1"),
        width=WIDTHS,
        depth=(1.0, 0.6, 1.5),
        kernel=(5, 3, 7),
        expansion=(6.0, 3.0, 4.0),
        act=("relu", "hardswish"),
    )


def mnasnet(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return MnasNet (Tan et al. 2019): plan B1, or A1 with squeeze-excite."""
    from dataset.families.networks.inverted import InvertedNet, Stage

    width, depth, act = float(p["width"]), float(p["depth"]), str(p["act"])
    kernel, expansion = int(p["kernel"]), float(p["expansion"])
    rows = [
        (24, 3, 2, 3, expansion / 2, 0.0),
        (40, 3, 2, kernel, expansion / 2, 0.25),
        (80, 3, 2, kernel, expansion, 0.0),
        (96, 2, 1, 3, expansion, 0.25),
        (192, 4, 2, kernel, expansion, 0.25),
        (320, 1, 1, 3, expansion, 0.0),
    ]
    stages = [Stage("inverted", _wide(16, width), 1, 1, 3, 1.0, 0.0, act)] + [
        Stage(
            "inverted",
            _wide(w, width),
            _deep(d, depth),
            s,
            k,
            e,
            r if p["plan"] == "a1" else 0,
            act,
        )
        for w, d, s, k, e, r in rows
    ]
    return InvertedNet(stages, stem=_wide(32, width), features=1280)


def efficientnet_grid() -> list[dict[str, Scalar]]:
    """Return B0 to B5 and the same scaling of version 2, and members between them."""
    scales = ((1.0, 1.0), (1.0, 1.1), (1.1, 1.2), (1.2, 1.4), (1.4, 1.8), (1.6, 2.2))
    published: list[dict[str, Scalar]] = [
        {"version": 1, "width": w, "depth": d, "kernel": 5, "se": 0.25, "act": "silu"}
        for w, d in scales
    ]
    others = spread(
        24,
        version=(1, 2),
        width=(0.35, 0.5, 0.65, 0.75, 0.9, 1.1, 1.3, 1.5),
        depth=(0.5, 0.75, 1.0, 1.3, 1.6),
        kernel=(5, 3, 7),
        se=(0.25, 0.0, 0.125),
        act=("silu", "relu", "hardswish", "gelu"),
    )
    return [*published, *others]


def efficientnet(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return EfficientNet (Tan and Le 2019) or its second version (2021), scaled."""
    from dataset.families.networks.inverted import InvertedNet, Stage

    width, depth, act, se = float(p["width"]), float(p["depth"]), str(p["act"]), float(p["se"])
    kernel = int(p["kernel"])
    rows: list[tuple[str, int, int, int, int, float, float]]
    if p["version"] == 1:
        rows = [
            ("inverted", 16, 1, 1, 3, 1.0, se),
            ("inverted", 24, 2, 2, 3, 6.0, se),
            ("inverted", 40, 2, 2, kernel, 6.0, se),
            ("inverted", 80, 3, 2, 3, 6.0, se),
            ("inverted", 112, 3, 1, kernel, 6.0, se),
            ("inverted", 192, 4, 2, kernel, 6.0, se),
            ("inverted", 320, 1, 1, 3, 6.0, se),
        ]
    else:
        rows = [
            ("fused", 24, 2, 1, 3, 1.0, 0.0),
            ("fused", 48, 4, 2, 3, 4.0, 0.0),
            ("fused", 64, 4, 2, 3, 4.0, 0.0),
            ("inverted", 128, 6, 2, kernel, 4.0, se),
            ("inverted", 160, 9, 1, 3, 6.0, se),
            ("inverted", 256, 12, 2, kernel, 6.0, se),
        ]
    stages = [
        Stage(kind, _wide(w, width), _deep(d, depth), s, k, e, r, act)
        for kind, w, d, s, k, e, r in rows
    ]
    return InvertedNet(stages, stem=_wide(32, width), features=_wide(1280, width))


def _wide(width: int, factor: float) -> int:
    from dataset.families.networks.layers import round_width

    return round_width(width * factor)


def _deep(depth: int, factor: float) -> int:
    return max(1, math.ceil(depth * factor - 1e-9))


MOBILENET = Family(
    name="mobilenet",
    kind="model",
    about="MobileNet v1, v2 and v3-like (Howard et al. 2017, Sandler 2018, Howard 2019)",
    grid=mobilenet_grid,
    sizes=image_sizes,
    build=mobilenet,
    inputs=image,
    images=True,
)
MNASNET = Family(
    name="mnasnet",
    kind="model",
    about="MnasNet (Tan et al. 2019)",
    grid=mnasnet_grid,
    sizes=image_sizes,
    build=mnasnet,
    inputs=image,
    images=True,
)
EFFICIENTNET = Family(
    name="efficientnet",
    kind="model",
    about="EfficientNet v1 and v2 (Tan and Le 2019, 2021)",
    grid=efficientnet_grid,
    sizes=image_sizes,
    build=efficientnet,
    inputs=image,
    images=True,
)
