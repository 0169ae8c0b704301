"""Family "vit": vision transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, number, spread

if TYPE_CHECKING:
    import torch


def grid() -> list[dict[str, Scalar]]:
    """Return the published tiny to huge ones, and members of other shapes."""
    usual: dict[str, Scalar] = {
        "mlp_ratio": 4.0,
        "pool": "token",
        "act": "gelu",
        "norm": "layer",
        "order": "pre",
    }
    published = [
        {**usual, "patch": patch, "width": width, "depth": depth, "heads": heads}
        for patch, width, depth, heads in (
            (16, 192, 12, 3),
            (16, 384, 12, 6),
            (32, 768, 12, 12),
            (16, 768, 12, 12),
            (14, 1024, 24, 16),
            (14, 1280, 32, 16),
        )
    ]
    others = spread(
        25,
        lambda p: (
            int(p["width"]) % int(p["heads"]) == 0 and int(p["width"]) >= 32 * int(p["heads"])
        ),
        patch=(16, 32, 8, 14),
        width=(192, 256, 320, 384, 512, 640, 768),
        depth=(4, 6, 8, 10, 12, 16, 24),
        heads=(2, 4, 5, 6, 8, 12),
        mlp_ratio=(2.0, 3.0, 4.0, 2.6666),
        pool=("token", "mean"),
        act=("gelu", "swiglu", "relu", "geglu"),
        norm=("layer", "rms"),
        order=("pre", "parallel", "post"),
    )
    return [*published, *others]


def sizes(p: Parameters) -> list[Sizes]:
    """Return image sizes that the patch divides, of 49 to about 1000 patches."""
    patch = int(p["patch"])
    sides = [n * patch for n in range(4, 32) if 96 <= n * patch <= 448]
    steps = [sides[(number(p) + i * 5) % len(sides)] for i in range(4)]
    base = 224 // patch * patch
    return list(dict.fromkeys([(base, base), *((s, s) for s in steps[:3]), (steps[3], base)]))


def build(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.vit import VisionTransformer

    return VisionTransformer(image=(sizes[0], sizes[1]), **p)


FAMILY = Family(
    name="vit",
    kind="model",
    about="vision transformers (Dosovitskiy et al. 2021)",
    grid=grid,
    sizes=sizes,
    build=build,
    inputs=image,
    images=True,
)
