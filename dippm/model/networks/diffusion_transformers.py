"""Diffusion transformers: DiT, Latte, SD3 and FLUX.1.

Peebles and Xie 2023; Ma et al. 2024; Esser et al. 2024; Black Forest Labs 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dippm.model.networks.diffusion_unet import wave_code

CODE = 256
"""Width of the sinusoidal time embedding."""


class DiT(nn.Module):
    """Latents (batch, 4, h, w), times (batch, 1), classes (batch, 1) → noise and its variance."""

    def __init__(
        self, width: int = 1152, depth: int = 28, heads: int = 16, classes: int = 1000
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(4, width, 2, stride=2)
        self.register_buffer("positions", torch.zeros(1, 64 * 64, width))
        self.time = _two_layers(CODE, width)
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(ModulatedBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulate = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, 2 * 4 * 2 * 2)
        self.back = nn.PixelShuffle(2)

    def forward(self, latent: Tensor, time: Tensor, label: Tensor) -> Tensor:  # noqa: D102
        x = self.embed(latent)
        grid = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)
        positions: Tensor = self.positions  # type: ignore[assignment]
        x = x + positions[:, : x.shape[1]]
        code = self.time(wave_code(time, CODE)) + self.label(label.long())[:, 0]
        code = functional.silu(code)
        for block in self.blocks:
            x = block(x, code)
        shift, scale = self.modulate(code)[:, None].chunk(2, -1)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        y: Tensor = self.back(x.transpose(1, 2).unflatten(2, grid))
        return y


class VideoDiT(DiT):
    """Latte: latents (batch, frames, 4, h, w), times, classes → noise and its variance.

    Blocks attend within a frame and, alternately, between frames at one position.
    """

    def forward(self, latent: Tensor, time: Tensor, label: Tensor) -> Tensor:  # noqa: D102
        frames = latent.shape[1]
        x = self.embed(latent.flatten(0, 1))
        grid = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)
        places = x.shape[1]
        positions: Tensor = self.positions  # type: ignore[assignment]
        x = x + positions[:, :places]
        code = self.time(wave_code(time, CODE)) + self.label(label.long())[:, 0]
        code = functional.silu(code)
        of_frames = code.repeat_interleave(frames, 0)
        of_places = code.repeat_interleave(places, 0)
        for number, block in enumerate(self.blocks):
            if number % 2 == 0:
                x = block(x, of_frames)
                continue
            x = x.unflatten(0, (-1, frames)).transpose(1, 2).flatten(0, 1)
            x = block(x, of_places)
            x = x.unflatten(0, (-1, places)).transpose(1, 2).flatten(0, 1)
        shift, scale = self.modulate(of_frames)[:, None].chunk(2, -1)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        y = self.back(x.transpose(1, 2).unflatten(2, grid))
        return y.unflatten(0, (-1, frames))


class ModulatedBlock(nn.Module):
    """A transformer block modulated by an embedding: norms scaled and shifted, branches gated."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = _mlp(width)
        self.modulate = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:  # noqa: D102
        parts = self.modulate(code)[:, None].chunk(6, -1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        y = self.norm1(x) * (1 + scale1) + shift1
        query, key, value = (_in_heads(part, self.heads) for part in self.qkv(y).chunk(3, -1))
        x = x + gate1 * self.out(_attended(query, key, value))
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class JointTransformer(nn.Module):
    """SD3: latents (batch, 16, h, w), times, texts (batch, tokens, 4096), pooled texts → noise.

    Image and text have separate layers and joint attention.
    """

    def __init__(
        self,
        depth: int = 24,
        heads: int = 24,
        *,
        head_width: int = 64,
        text_width: int = 4096,
        pooled_width: int = 2048,
        channels: int = 16,
        positions: int = 192,
    ) -> None:
        super().__init__()
        width = heads * head_width
        self.embed = nn.Conv2d(channels, width, 2, stride=2)
        self.register_buffer("positions", torch.zeros(1, positions**2, width))
        self.time, self.pooled = _two_layers(CODE, width), _two_layers(pooled_width, width)
        self.text = nn.Linear(text_width, width)
        self.blocks = nn.ModuleList(
            JointBlock(width, heads, keeps_text=i < depth - 1) for i in range(depth)
        )
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulate = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, channels * 2 * 2)
        self.back = nn.PixelShuffle(2)

    def forward(  # noqa: D102
        self, latent: Tensor, time: Tensor, text: Tensor, pooled: Tensor
    ) -> Tensor:
        x = self.embed(latent)
        grid = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)
        positions: Tensor = self.positions  # type: ignore[assignment]
        x = x + positions[:, : x.shape[1]]
        code = functional.silu(self.time(wave_code(time, CODE)) + self.pooled(pooled))
        t = self.text(text)
        for block in self.blocks:
            x, t = block(x, t, code)
        scale, shift = self.modulate(code)[:, None].chunk(2, -1)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        y: Tensor = self.back(x.transpose(1, 2).unflatten(2, grid))
        return y


class Flux(nn.Module):
    """FLUX.1: image tokens (batch, n, 64), times, texts (batch, m, 4096), pooled texts → noise.

    Blocks with separate layers for image and text, then blocks over both in one sequence.
    """

    def __init__(
        self,
        doubles: int = 19,
        singles: int = 38,
        heads: int = 24,
        *,
        head_width: int = 128,
        text_width: int = 4096,
        pooled_width: int = 768,
        channels: int = 64,
        guided: bool = True,
    ) -> None:
        super().__init__()
        width = heads * head_width
        self.head_width = head_width
        self.embed, self.text = nn.Linear(channels, width), nn.Linear(text_width, width)
        self.time, self.pooled = _two_layers(CODE, width), _two_layers(pooled_width, width)
        self.guidance = _two_layers(CODE, width) if guided else None
        self.doubles = nn.ModuleList(JointBlock(width, heads, normed=True) for _ in range(doubles))
        self.singles = nn.ModuleList(SingleBlock(width, heads) for _ in range(singles))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulate = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, channels)

    def forward(  # noqa: D102
        self,
        tokens: Tensor,
        time: Tensor,
        text: Tensor,
        pooled: Tensor,
        guidance: Tensor | None = None,
    ) -> Tensor:
        x, t = self.embed(tokens), self.text(text)
        code = self.time(wave_code(time, CODE)) + self.pooled(pooled)
        if self.guidance is not None and guidance is not None:
            code = code + self.guidance(wave_code(guidance, CODE))
        code = functional.silu(code)
        rotation = _rotation(t.shape[1] + x.shape[1], self.head_width, x)
        for block in self.doubles:
            x, t = block(x, t, code, rotation)
        both, words = torch.cat([t, x], 1), t.shape[1]
        for block in self.singles:
            both = block(both, code, rotation)
        x = both[:, words:]
        scale, shift = self.modulate(code)[:, None].chunk(2, -1)
        y: Tensor = self.head(self.norm(x) * (1 + scale) + shift)
        return y


class Stream(nn.Module):
    """The separate layers of the image, or of the text, in a joint block."""

    def __init__(self, width: int, heads: int, *, normed: bool, keeps: bool) -> None:
        super().__init__()
        self.heads, self.keeps = heads, keeps
        self.modulate = nn.Linear(width, (6 if keeps else 2) * width)
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.norms = _head_norms(width // heads) if normed else None
        if keeps:
            self.out = nn.Linear(width, width)
            self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
            self.mlp = _mlp(width)

    def enter(self, x: Tensor, code: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return queries, keys and values in heads, and the gates and shifts for `leave`."""
        shift, scale, *rest = self.modulate(code)[:, None].chunk(6 if self.keeps else 2, -1)
        y = self.norm1(x) * (1 + scale) + shift
        query, key, value = (
            _in_heads(part(y), self.heads) for part in (self.query, self.key, self.value)
        )
        if self.norms is not None:
            query, key = self.norms[0](query), self.norms[1](key)
        return (query, key, value), tuple(rest)

    def leave(self, x: Tensor, mixed: Tensor, rest: tuple[Tensor, ...]) -> Tensor:
        """Return the input of the next block."""
        gate1, shift2, scale2, gate2 = rest
        x = x + gate1 * self.out(mixed)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class JointBlock(nn.Module):
    """A block with separate layers for image and text, and joint attention."""

    def __init__(
        self, width: int, heads: int, *, normed: bool = False, keeps_text: bool = True
    ) -> None:
        super().__init__()
        self.image = Stream(width, heads, normed=normed, keeps=True)
        self.words = Stream(width, heads, normed=normed, keeps=keeps_text)

    def forward(  # noqa: D102
        self, x: Tensor, text: Tensor, code: Tensor, rotation: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        of_image, rest = self.image.enter(x, code)
        of_words, word_rest = self.words.enter(text, code)
        query, key, value = (
            torch.cat([word, image], 2) for word, image in zip(of_words, of_image, strict=True)
        )
        if rotation is not None:
            query, key = _rotated(query, rotation), _rotated(key, rotation)
        mixed = _attended(query, key, value)
        words = text.shape[1]
        x = self.image.leave(x, mixed[:, words:], rest)
        if self.words.keeps:
            text = self.words.leave(text, mixed[:, :words], word_rest)
        return x, text


class SingleBlock(nn.Module):
    """A block with attention and MLP in parallel over one sequence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.modulate = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.wide = nn.Linear(width, width), nn.Linear(width, 4 * width)
        self.norms = _head_norms(width // heads)
        self.out = nn.Linear(5 * width, width)

    def forward(  # noqa: D102
        self, x: Tensor, code: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        shift, scale, gate = self.modulate(code)[:, None].chunk(3, -1)
        y = self.norm(x) * (1 + scale) + shift
        wide = functional.gelu(self.wide(y), approximate="tanh")
        query, key, value = (
            _in_heads(part(y), self.heads) for part in (self.query, self.key, self.value)
        )
        query = _rotated(self.norms[0](query), rotation)
        key = _rotated(self.norms[1](key), rotation)
        mixed = _attended(query, key, value)
        return x + gate * self.out(torch.cat([mixed, wide], -1))


def _two_layers(width: int, out_width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, out_width), nn.SiLU(), nn.Linear(out_width, out_width))


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
    )


def _head_norms(head_width: int) -> nn.ModuleList:
    return nn.ModuleList(nn.RMSNorm(head_width, eps=1e-6) for _ in range(2))


def _in_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    mixed = functional.scaled_dot_product_attention(query, key, value)
    return mixed.transpose(1, 2).flatten(2)


def _rotation(tokens: int, head_width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles of a rotary embedding."""
    half = torch.arange(head_width // 2, device=like.device, dtype=torch.float32)
    places = torch.arange(tokens, device=like.device, dtype=torch.float32)
    angles = places[:, None] * torch.pow(10000.0, -2 * half / head_width)[None]
    angles = angles.repeat_interleave(2, -1)
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Return heads with the rotary embedding applied, as (batch, heads, tokens, width)."""
    cosines, sines = rotation
    real, imaginary = x.unflatten(3, (-1, 2)).unbind(-1)
    turned = torch.stack([-imaginary, real], -1).flatten(3)
    return (x.float() * cosines + turned.float() * sines).to(x.dtype)
