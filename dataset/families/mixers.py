"""Families "mlp_mixer" and "mobilevit"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, Parameters, Scalar, Sizes
from dataset.families.grids import image, image_sizes, number, numbers, spread

if TYPE_CHECKING:
    import torch


def mixer_grid() -> list[dict[str, Scalar]]:
    """Return members that mix by an MLP, by a matrix and by a gate."""
    return spread(
        26,
        patch=(16, 32, 14, 8),
        width=(128, 192, 256, 384, 512, 768),
        depth=(4, 6, 8, 12, 16, 24),
        token_ratio=(0.5, 0.25, 1.0),
        mlp_ratio=(4.0, 2.0, 6.0, 3.0),
        act=("gelu", "relu", "silu"),
        mixing=("mixer", "linear", "gated"),
    )


def mixer_sizes(p: Parameters) -> list[Sizes]:
    """Return image sizes that the patch divides."""
    patch = int(p["patch"])
    sides = [n * patch for n in range(4, 24) if 112 <= n * patch <= 352]
    first = number(p)
    chosen = [sides[(first + i * 3) % len(sides)] for i in range(3)]
    base = 224 // patch * patch
    return list(dict.fromkeys([(base, base), *((s, s) for s in chosen), (chosen[0], chosen[1])]))


def mixer(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network, whose weights depend on the number of patches."""
    from dataset.families.networks.token_mixers import Mixer

    return Mixer(image=(sizes[0], sizes[1]), **p)


def mobilevit_grid() -> list[dict[str, Scalar]]:
    """Return shapes like XXS, XS and S, and members between them."""
    return spread(
        24,
        lambda p: all(width % (4 * int(p["heads"])) == 0 for width in numbers(str(p["inner"]))),
        widths=("16-24-48-64-80", "32-48-64-80-96", "32-64-96-128-160", "16-32-64-96-128"),
        inner=("64-80-96", "96-120-144", "144-192-240", "128-160-192"),
        depths=("2-4-3", "1-2-1", "2-2-2", "3-6-4"),
        heads=(4, 2, 8),
        patch=(2, 4),
        expansion=(4.0, 2.0, 3.0),
        act=("silu", "relu", "gelu"),
    )


def mobilevit(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the network."""
    from dataset.families.networks.token_mixers import MobileVit

    lists = {name: numbers(str(p[name])) for name in ("widths", "inner", "depths")}
    return MobileVit(**{**p, **lists})


MLP_MIXER = Family(
    name="mlp_mixer",
    kind="model",
    about="MLP-Mixer, ResMLP and gMLP (Tolstikhin, Touvron and Liu et al. 2021)",
    grid=mixer_grid,
    sizes=mixer_sizes,
    build=mixer,
    inputs=image,
    images=True,
)
MOBILEVIT = Family(
    name="mobilevit",
    kind="model",
    about="MobileViT (Mehta and Rastegari 2022)",
    grid=mobilevit_grid,
    sizes=image_sizes,
    build=mobilevit,
    inputs=image,
    images=True,
)
