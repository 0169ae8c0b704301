"""Families "diffusion_unet" and "diffusion_transformer": one denoising step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families.family import Family, InputTensor, Parameters, Scalar, Sizes
from dataset.families.grids import numbers, rotate_choices, spread

if TYPE_CHECKING:
    import torch

PLACES = ((32, 32), (64, 64), (16, 16), (48, 48), (32, 64), (96, 96))


def unet_grid() -> list[dict[str, Scalar]]:
    """Return pixel-space members without text, latent ones with it, narrow to wide."""
    latent: dict[str, Scalar] = {
        "channels": 4,
        "multipliers": "1-2-4-4",
        "depth": 2,
        "attended": 3,
        "head_width": 64,
        "text_width": 768,
        "scale": False,
    }
    published = [{**latent, "width": width} for width in (320, 256)]
    others = spread(
        26,
        channels=(4, 3, 8),
        width=(32, 48, 64, 96, 128, 192),
        multipliers=("1-2-4", "1-2-2-2", "1-2-4-4", "1-2", "1-1-2-3"),
        depth=(1, 2, 3),
        attended=(1, 2, 0),
        head_width=(32, 64),
        text_width=(0, 768, 512),
        scale=(False, True),
    )
    return [*published, *others]


def unet(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the U-Net."""
    from dataset.families.networks.diffusion import DiffusionUNet

    return DiffusionUNet(**{**p, "multipliers": numbers(str(p["multipliers"]))})


def unet_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return the noisy image, its time, and the states of 77 tokens if the network reads text."""
    noisy = (InputTensor("noisy", (int(p["channels"]), *sizes)), InputTensor("time", (1,)))
    text_width = int(p["text_width"])
    return (*noisy, InputTensor("text", (77, text_width))) if text_width else noisy


def transformer_grid() -> list[dict[str, Scalar]]:
    """Return DiT-S to XL and members of other widths, depths and patches."""
    latent: dict[str, Scalar] = {"channels": 4, "patch": 2, "mlp_ratio": 4.0}
    published = [
        {**latent, "width": width, "depth": depth, "heads": heads}
        for width, depth, heads in ((384, 12, 6), (768, 12, 12), (1024, 24, 16), (1152, 28, 16))
    ]
    others = spread(
        24,
        lambda p: int(p["width"]) % int(p["heads"]) == 0,
        channels=(4, 16),
        patch=(2, 4, 8),
        width=(192, 256, 384, 512, 768, 1024),
        depth=(4, 6, 8, 12, 16),
        heads=(4, 6, 8, 12, 16),
        mlp_ratio=(4.0, 2.0, 3.0),
    )
    return [*published, *others]


def transformer(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    """Return the transformer."""
    from dataset.families.networks.diffusion import DiffusionTransformer

    return DiffusionTransformer(size=(sizes[0], sizes[1]), **p)


def transformer_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return the noisy latent image and its time."""
    return (InputTensor("noisy", (int(p["channels"]), *sizes)), InputTensor("time", (1,)))


DIFFUSION_UNET = Family(
    name="diffusion_unet",
    kind="model",
    about="denoising U-Nets with attention and text (Ho et al. 2020, Rombach et al. 2022)",
    grid=unet_grid,
    sizes=lambda p: rotate_choices(PLACES, p, 4),
    build=unet,
    inputs=unet_inputs,
    largest_batch=256,
)
DIFFUSION_TRANSFORMER = Family(
    name="diffusion_transformer",
    kind="model",
    about="denoising transformers (DiT, Peebles and Xie 2023)",
    grid=transformer_grid,
    sizes=lambda p: rotate_choices(PLACES, p, 4),
    build=transformer,
    inputs=transformer_inputs,
    largest_batch=256,
)
