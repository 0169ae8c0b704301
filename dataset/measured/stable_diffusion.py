"""The U-Net of Stable Diffusion 1.x by name, for tables with its times.

A name is "sd:unet-v1@64": the latent image has 64 x 64 pixels, for an image of 512 x 512. The
module is `dippm.model.networks.diffusion_unet.UNet`, in the sizes of the published configuration.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.model.networks.diffusion_unet import SD15, UNet

TOKENS = 77
PIXELS_PER_PLACE = 8
"""Image pixels per latent pixel, along each side."""


def module_of(name: str) -> nn.Module:
    """Return the module of a name, on no device.

    Raises:
        ValueError: if the name is not "unet-v1".
    """
    if name != "unet-v1":
        raise ValueError(f"unknown network of Stable Diffusion {name!r}; known: unet-v1")
    with torch.device("meta"):
        return UNet().eval()


def inputs_of(batch: int, size: int) -> tuple[Tensor, ...]:
    """Return latent images of `size` pixels a side, their times and texts, on no device."""
    with torch.device("meta"):
        latent = torch.empty(batch, SD15.channels, size, size)
        return latent, torch.empty(batch, 1), torch.empty(batch, TOKENS, SD15.text_width)
