"""One operator per module, for the calibration of GPUs and the efficiency model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dataset.families.networks.layers import ACTIVATIONS


class FunctionModule(nn.Module):
    """A function without weights."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:  # noqa: D102
        return self.function(*inputs)


class RecurrentLayers(nn.Module):
    """A recurrent layer's states, without its last state."""

    def __init__(self, cell: str, features: int, width: int, depth: int, *, bidirectional: bool):
        super().__init__()
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
        self.layers = kind(features, width, depth, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.layers(x)[0]


def elementwise(name: str) -> nn.Module:
    """Return a binary or unary element-wise operator."""
    binary: dict[str, Callable[..., Tensor]] = {
        "add": torch.add,
        "multiply": torch.mul,
        "maximum": torch.maximum,
    }
    if name in binary:
        return FunctionModule(binary[name])
    unary: dict[str, Callable[..., Tensor]] = {
        "exp": torch.exp,
        "square": torch.square,
        "sqrt_abs": lambda x: x.abs().sqrt(),
    }
    return FunctionModule(unary[name]) if name in unary else ACTIVATIONS[name]()


def move(name: str) -> nn.Module:
    """Return an operator that only moves data."""
    moves: dict[str, Callable[..., Tensor]] = {
        "copy": torch.clone,
        "transpose": lambda x: x.transpose(1, 2).contiguous(),
        "channels_to_last": lambda x: x.permute(0, 2, 3, 1).contiguous(),
        "concat": lambda x, y: torch.cat([x, y], 1),
        "slice": lambda x: x[:, ::2].contiguous(),
        "roll": lambda x: torch.roll(x, 1, 1),
        "pad": lambda x: functional.pad(x, (1, 1)),
    }
    return FunctionModule(moves[name])


def reduction(name: str) -> nn.Module:
    """Return a reduction over the last axis, or over all but the first two."""
    reductions: dict[str, Callable[..., Tensor]] = {
        "sum": lambda x: x.sum(-1),
        "mean": lambda x: x.mean(-1),
        "amax": lambda x: x.amax(-1),
        "var": lambda x: x.var(-1, correction=0),
        "sum_first": lambda x: x.sum(1),
    }
    return FunctionModule(reductions[name])


def attention(*, causal: bool) -> nn.Module:
    """Return scaled dot-product attention of query, key and value."""
    return FunctionModule(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    )


def resize(mode: str, factor: float) -> nn.Module:
    """Return interpolation by a factor."""
    corners = None if mode == "nearest" else False
    return FunctionModule(
        lambda x: functional.interpolate(x, scale_factor=factor, mode=mode, align_corners=corners)
    )
