"""Fake CUDA tensors on a build of torch without CUDA: models run in their CUDA form, on shapes.

Only shapes, strides and dtypes are worked out. Fused attention and recurrent layers, which a build
without CUDA would spell out, are replaced by one call each, see `replaced`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

CUDA = torch.device("cuda", 0)
_CUDA_GUARD, _META_GUARD = 1, 14
_DEVICE_TYPES = 20
FUSED_RANK = 4
FLASH_ALIGNMENT = 8

Record = Callable[[str, list[torch.Tensor], list[torch.Tensor]], None]


@contextlib.contextmanager
def cuda_device() -> Iterator[None]:
    """Let fakes be on a CUDA device that does not exist: meta's guard, which does nothing, is its.

    Nothing changes where torch has CUDA.
    """
    if torch.version.cuda is not None:
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    name = "_ZN3c104impl26device_guard_impl_registryE"
    guards = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(library, name)
    before = guards[_CUDA_GUARD]
    guards[_CUDA_GUARD] = before or guards[_META_GUARD]
    try:
        yield
    finally:
        guards[_CUDA_GUARD] = before


@contextlib.contextmanager
def autocast(half: torch.dtype) -> Iterator[None]:
    """Autocast as on a GPU: `torch.autocast` turns itself off where torch has no CUDA."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", half)
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


class Fakes:
    """Makes fakes of real or meta tensors; one tensor has one fake.

    Attributes:
        mode: their fake tensor mode.
        weights: the fakes of parameters and buffers, by id.
    """

    def __init__(self, floats: torch.dtype, channels_last: bool) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.weights: dict[int, torch.Tensor] = {}
        self._floats, self._channels_last = floats, channels_last
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake of a tensor; floats take the precision of the run."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._made:
            held = torch.empty_strided(
                tuple(tensor.shape),
                tuple(tensor.stride()),
                dtype=self._floats if tensor.is_floating_point() else tensor.dtype,
                device="meta",
            )
            if self._channels_last and held.dim() == 4:
                held = held.contiguous(memory_format=torch.channels_last)
            self._made[id(tensor)] = (FakeTensor(self.mode, held, CUDA), tensor)
        return self._made[id(tensor)][0]

    def replace(self, module: nn.Module) -> None:
        """Replace parameters, buffers and other tensors of a module by fakes, in place."""
        tied: dict[int, nn.Parameter] = {}
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is None or isinstance(parameter, FakeTensor):
                    continue
                if id(parameter) not in tied:
                    fake = self.of(parameter.detach())
                    tied[id(parameter)] = nn.Parameter(fake, fake.is_floating_point())
                part._parameters[name] = tied[id(parameter)]
                self.weights[id(tied[id(parameter)])] = tied[id(parameter)]
            places: tuple[dict[str, Any], ...] = (part._buffers, part.__dict__)
            for held in places:
                for name, value in list(held.items()):
                    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                        held[name] = self.of(value)
                        self.weights[id(held[name])] = held[name]


@contextlib.contextmanager
def replaced(record: Record, quiet: Callable[[], Any], half: torch.dtype | None) -> Iterator[None]:
    """Make calls of fused kernels known, while the context lasts.

    Args:
        record: is told name, operands and results of such a call.
        quiet: a context in which calls are not recorded.
        half: what autocast lowers operands to; None without it.
    """
    spelled_out = nn.functional.scaled_dot_product_attention

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if query.dim() != FUSED_RANK:
            return spelled_out(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
        if half is not None:
            query, key, value = (lowered(tensor, half) for tensor in (query, key, value))
            attn_mask = None if attn_mask is None else lowered(attn_mask, half)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
        width = query.shape[-1]
        short = -width % FLASH_ALIGNMENT
        if short and query.dtype != torch.float32:
            padded = (nn.functional.pad(tensor, (0, short)) for tensor in (query, key, value))
            query, key, value = padded
        operands = [query, key, value, *([] if attn_mask is None else [attn_mask])]
        with quiet():
            batch, heads, rows = query.shape[:3]
            out = query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)
        record("attention", operands, [out])
        return out[..., :width] if value.shape[-1] != width and short else out

    def layer(name: str) -> Callable[..., Any]:
        return lambda *args: _recurrent(name, args, record, quiet, half)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(nn.functional, "scaled_dot_product_attention", attention))
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            stack.enter_context(patch.object(torch._VF, name, layer(name), create=True))
        yield


def lowered(tensor: torch.Tensor, half: torch.dtype) -> torch.Tensor:
    """Return an operand as autocast hands it to a product."""
    return tensor.to(half) if tensor.dtype == torch.float32 else tensor


def _recurrent(
    name: str, args: Any, record: Record, quiet: Callable[[], Any], half: torch.dtype | None
) -> Any:
    """Return outputs and last states of a recurrent layer, as one call of cuDNN."""
    x, states, weights, *_, both_ways, batch_first = args
    states = list(states) if isinstance(states, tuple | list) else [states]
    if half is not None:
        x, *states = (lowered(tensor, half) for tensor in (x, *states))
        weights = [lowered(tensor, half) for tensor in weights]
    hidden = states[0].shape[-1] * (2 if both_ways else 1)
    if batch_first:  # cuDNN wants steps first, densely
        x = x.transpose(0, 1).contiguous()
    with quiet():
        out = x.new_empty((*x.shape[:2], hidden))
        last = [x.new_empty(state.shape) for state in states]
    record(name, [x, *states, *weights], [out, *last])
    return (out.transpose(0, 1) if batch_first else out, *last)
