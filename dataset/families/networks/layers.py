"""Building blocks shared by several networks.

Only buffers are lost when a module is built without data: a module with its own buffers defines
`fill_buffers`, which writes them in place once memory is allocated.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dippm.model.networks.diffusion_unet import groups_that_fit

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "none": nn.Identity,
}
CONVOLUTIONS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
BATCH_NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE_NORMS: dict[int, type[nn.Module]] = {
    1: nn.InstanceNorm1d,
    2: nn.InstanceNorm2d,
    3: nn.InstanceNorm3d,
}


def activation(name: str) -> nn.Module:
    """Return a new activation."""
    return ACTIVATIONS[name]()


def norm(name: str, channels: int, *, dimensions: int = 2) -> nn.Module:
    """Return a new normalisation over the channels of (batch, channels, *space)."""
    if name == "batch":
        return BATCH_NORMS[dimensions](channels)
    if name == "layer":
        return ChannelNorm(channels)
    if name == "group":
        return nn.GroupNorm(groups_that_fit(channels, 32), channels)
    if name == "instance":
        return INSTANCE_NORMS[dimensions](channels, affine=True)
    return nn.Identity()


def round_width(width: float, multiple: int = 8) -> int:
    """Return the nearest multiple to a width, at least one multiple."""
    return max(multiple, int(width / multiple + 0.5) * multiple)


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of (batch, channels, *space)."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return super().forward(x.transpose(1, -1)).transpose(1, -1)


class Convolution(nn.Sequential):
    """Convolution, normalisation, activation; "same" padding of odd kernels."""

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int | tuple[int, ...] = 3,
        *,
        stride: int | tuple[int, ...] = 1,
        groups: int = 1,
        dilation: int = 1,
        norm_name: str = "batch",
        act: str = "relu",
        dimensions: int = 2,
    ) -> None:
        kernels = kernel if isinstance(kernel, tuple) else (kernel,) * dimensions
        layers: list[nn.Module] = [
            CONVOLUTIONS[dimensions](
                channels,
                width,
                kernels,
                stride=stride,
                padding=tuple(dilation * (k // 2) for k in kernels),
                dilation=dilation,
                groups=groups,
                bias=norm_name == "none",
            )
        ]
        if norm_name != "none":
            layers.append(norm(norm_name, width, dimensions=dimensions))
        if act != "none":
            layers.append(activation(act))
        super().__init__(*layers)


class SqueezeExcite(nn.Module):
    """Channel weights from a small network on channel means (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int, *, gate: str = "sigmoid", act: str = "relu"):
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.act = activation(act)
        self.expand = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Hardsigmoid() if gate == "hardsigmoid" else nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        means = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.expand(self.act(self.reduce(means))))


class ImageHead(nn.Sequential):
    """Global average and one linear layer, or two."""

    def __init__(self, channels: int, classes: int = 1000, *, hidden: int = 0, act: str = "relu"):
        layers: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if hidden:
            layers += [nn.Linear(channels, hidden), activation(act)]
        super().__init__(*layers, nn.Linear(hidden or channels, classes))


class Mlp(nn.Module):
    """Two linear layers; three with a gate for "swiglu" and "geglu"."""

    def __init__(self, width: int, hidden: int, *, act: str = "gelu", bias: bool = True) -> None:
        super().__init__()
        gated = {"swiglu": "silu", "geglu": "gelu"}
        self.gate = nn.Linear(width, hidden, bias=bias) if act in gated else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.act = activation(gated.get(act, act))
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        if self.gate is None:
            return self.down(self.act(self.up(x)))
        return self.down(self.act(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Multi-head attention with grouped keys and values, rotary positions and a causal mask."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int = 0,
        causal: bool = False,
        rotary: bool = False,
        bias: bool = True,
        context_width: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads or heads, width // heads
        self.causal, self.rotary = causal, rotary
        self.query = nn.Linear(width, width, bias=bias)
        source = context_width or width
        self.key = nn.Linear(source, self.kv_heads * self.size, bias=bias)
        self.value = nn.Linear(source, self.kv_heads * self.size, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:  # noqa: D102
        source = x if context is None else context
        query = self._split(self.query(x), self.heads)
        key = self._split(self.key(source), self.kv_heads)
        value = self._split(self.value(source), self.kv_heads)
        if self.rotary:
            query, key = rotate(query), rotate(key)
        if self.kv_heads != self.heads:
            copies = self.heads // self.kv_heads
            key, value = key.repeat_interleave(copies, 1), value.repeat_interleave(copies, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(2, (heads, self.size)).transpose(1, 2)


def rotate(x: Tensor) -> Tensor:
    """Rotate pairs of features by angles that grow with the position (Su et al. 2021).

    Args:
        x: (batch, heads, positions, size).
    """
    length, half = x.shape[2], x.shape[3] // 2
    steps = torch.arange(half, device=x.device, dtype=torch.float32)
    positions = torch.arange(length, device=x.device, dtype=torch.float32)
    angles = positions[:, None] * torch.pow(10000.0, -steps / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class TransformerBlock(nn.Module):
    """Attention and an MLP, each with a norm and a residual connection.

    Args of `order`: "pre" norms the input of each part, "post" norms the sum (the first
    transformer and BERT), "parallel" feeds one norm to both parts.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        act: str = "gelu",
        norm_name: str = "layer",
        order: str = "pre",
        kv_heads: int = 0,
        causal: bool = False,
        rotary: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.order = order
        self.norm1 = token_norm(norm_name, width)
        self.attention = Attention(
            width, heads, kv_heads=kv_heads, causal=causal, rotary=rotary, bias=bias
        )
        self.norm2 = token_norm(norm_name, width) if order != "parallel" else None
        self.mlp = Mlp(width, hidden, act=act, bias=bias)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        if self.norm2 is None:
            normed = self.norm1(x)
            return x + self.attention(normed) + self.mlp(normed)
        if self.order == "post":
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def token_norm(name: str, width: int) -> nn.Module:
    """Return a norm over the last axis: "layer" or "rms"."""
    return nn.RMSNorm(width, eps=1e-6) if name == "rms" else nn.LayerNorm(width)


class PositionTable(nn.Module):
    """Adds a learned vector to each position of (batch, positions, width)."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(positions, width))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return x + self.table[: x.shape[1]]
