"""The decoder of the autoencoder in latent diffusion: latent image → pixels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from dippm.model.networks.diffusion_unet import GROUPS, TimeResidual

WIDTHS = (512, 512, 256, 128)
RESIDUALS = 3


class PixelDecoder(nn.Module):
    """Latents (batch, channels, h, w) → images (batch, 3, 8 h, 8 w).

    Args:
        channels: channels of the latent image.
        quantized: whether a 1 x 1 convolution precedes it, as in Stable Diffusion 1.x and XL.
    """

    def __init__(self, channels: int = 4, *, quantized: bool = True) -> None:
        super().__init__()
        self.unquantize = nn.Conv2d(channels, channels, 1) if quantized else nn.Identity()
        now = WIDTHS[0]
        self.enter = nn.Conv2d(channels, now, 3, padding=1)
        self.middle = nn.Sequential(_residual(now, now), PlaceAttention(now), _residual(now, now))
        self.up = nn.ModuleList()
        for level, width in enumerate(WIDTHS):
            for _ in range(RESIDUALS):
                self.up.append(_residual(now, width))
                now = width
            if level < len(WIDTHS) - 1:
                self.up.append(nn.Conv2d(now, now, 3, padding=1))
        self.leave = nn.Sequential(
            nn.GroupNorm(GROUPS, now), nn.SiLU(), nn.Conv2d(now, 3, 3, padding=1)
        )

    def forward(self, latent: Tensor) -> Tensor:  # noqa: D102
        x = self.middle(self.enter(self.unquantize(latent)))
        for part in self.up:
            if isinstance(part, nn.Conv2d):
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = part(x)
        pixels: Tensor = self.leave(x)
        return pixels


class PlaceAttention(nn.Module):
    """Single-head attention between all positions of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = (part(y)[:, None] for part in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed[:, 0]).transpose(1, 2).unflatten(2, x.shape[2:])


def _residual(channels: int, width: int) -> TimeResidual:
    return TimeResidual(channels, width, 0, scale=False)
