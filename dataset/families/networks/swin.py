"""Swin transformers (Liu et al. 2021): attention in shifted windows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dataset.families.networks.layers import activation


class WindowAttention(nn.Module):
    """Attention inside windows with a learned bias per relative position."""

    index: Tensor

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width)
        self.bias = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        self.register_buffer("index", torch.empty(window**4, dtype=torch.int64), persistent=False)
        self.out = nn.Linear(width, width)

    def fill_buffers(self) -> None:
        """Compute the index of the relative position for each pair of positions in a window."""
        side = torch.arange(self.window)
        places = torch.stack(torch.meshgrid(side, side, indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None] + self.window - 1
        self.index.copy_((apart[0] * (2 * self.window - 1) + apart[1]).flatten())

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mix (windows, tokens, width); `mask` is (1, kinds of window, 1, tokens, tokens)."""
        places = x.shape[1]
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        bias = self.bias[self.index].unflatten(0, (places, places)).permute(2, 0, 1)[None]
        if mask is not None:
            kinds = mask.shape[1]
            bias = (bias[:, None] + mask).expand(x.shape[0] // kinds, -1, -1, -1, -1).flatten(0, 1)
        else:
            bias = bias.expand(x.shape[0], -1, -1, -1)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.out(mixed.transpose(1, 2).flatten(2))


class SwinBlock(nn.Module):
    """Window attention, with windows shifted by half in every second block, and an MLP."""

    mask: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int,
        shift: int,
        mlp_ratio: float,
        act: str,
        grid: tuple[int, int],
    ):
        super().__init__()
        self.window, self.grid = window, grid
        self.padded = tuple(-(-side // window) * window for side in grid)
        self.shift = shift if min(self.padded) > window else 0
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, window)
        hidden = int(width * mlp_ratio)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), activation(act), nn.Linear(hidden, width)
        )
        if self.shift:
            kinds = self.padded[0] // window * (self.padded[1] // window)
            shape = (1, kinds, 1, window**2, window**2)
            self.register_buffer("mask", torch.empty(shape), persistent=False)

    def fill_buffers(self) -> None:
        """Mask pairs of positions that are neighbours only because of the shift."""
        if not self.shift:
            return
        region = torch.zeros(self.padded)
        for axis in (0, 1):
            side = self.padded[axis]
            lines = torch.zeros(side)
            lines[side - self.window : side - self.shift], lines[side - self.shift :] = 1, 2
            region += (lines * 3**axis)[:, None] if axis == 0 else lines * 3**axis
        places = self._windows(region[None, :, :, None])[..., 0]
        apart = (places[:, None] != places[:, :, None]).float() * -100.0
        self.mask.copy_(apart[None, :, None])

    def forward(self, x: Tensor) -> Tensor:
        """Mix (batch, height, width, channels)."""
        y = self.norm1(x)
        height, width = self.grid
        rows, columns = self.padded
        if (rows, columns) != (height, width):
            y = functional.pad(y, (0, 0, 0, columns - width, 0, rows - height))
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = self.attention(self._windows(y), self.mask if self.shift else None)
        y = y.unflatten(1, (self.window, self.window)).unflatten(
            0, (x.shape[0], rows // self.window, columns // self.window)
        )
        y = y.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(1, 2)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y[:, :height, :width]
        return x + self.mlp(self.norm2(x))

    def _windows(self, x: Tensor) -> Tensor:
        """Split (batch, height, width, channels) into (batch · windows, positions, channels)."""
        x = x.unflatten(2, (-1, self.window)).unflatten(1, (-1, self.window))
        return x.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(0, 2)


class Merge(nn.Module):
    """Merge 2×2 positions into one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = functional.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, -1)))


class Swin(nn.Module):
    """Patches, four stages between merges, head."""

    def __init__(
        self,
        *,
        image: tuple[int, int],
        patch: int,
        width: int,
        depths: list[int],
        head_width: int,
        window: int,
        mlp_ratio: float,
        act: str,
    ):
        super().__init__()
        grid = (image[0] // patch, image[1] // patch)
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        self.norm = nn.LayerNorm(width)
        layers: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            if stage:
                layers.append(Merge(width))
                width, grid = 2 * width, (-(-grid[0] // 2), -(-grid[1] // 2))
            layers += [
                SwinBlock(
                    width,
                    width // head_width,
                    window=window,
                    shift=i % 2 * (window // 2),
                    mlp_ratio=mlp_ratio,
                    act=act,
                    grid=grid,
                )
                for i in range(depth)
            ]
        self.stages = nn.Sequential(*layers)
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.norm(self.embed(x).permute(0, 2, 3, 1))
        return self.head(self.last(self.stages(x)).mean((1, 2)))
