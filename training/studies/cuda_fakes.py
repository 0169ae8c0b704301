"""Fake CUDA tensors on a build of torch without CUDA: models run as on CUDA, with shapes only.

Only shapes, strides and dtypes are computed. Fused attention and recurrent layers, which a build
without CUDA decomposes, are replaced by one call each, see `replaced`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

CUDA = torch.device("cuda", 0)
_LIBRARIES = Path(torch.__file__).parent / "lib"
_CUDA_GUARD, _META_GUARD = 1, 14
_DEVICE_TYPES = 20
_IS_BUILT, _HAS_CONTEXT = 2, 4
"""Positions of functions in ATen/detail/AcceleratorHooksInterface.h."""
_GET_STREAM, _EXCHANGE_STREAM = 5, 9
"""Positions of functions in c10/core/impl/DeviceGuardImplInterface.h."""
_TABLE, _BEFORE_TABLE = 64, 2
_CONSTANTS = {
    "x86_64": bytes.fromhex("b801000000 31d2 c3"),
    "aarch64": bytes.fromhex("200080d2 010080d2 c0035fd6"),
}
"""A function by processor: true, and the first stream of the first CUDA device, which is as long
as two registers that hold 1 and 0."""
FUSED_RANK = 4
FLASH_ALIGNMENT = 8

Record = Callable[[str, list[torch.Tensor], list[torch.Tensor]], None]


@contextlib.contextmanager
def cuda_device() -> Iterator[None]:
    """Allow fakes on a CUDA device that does not exist, with the empty device guard of meta.

    Nothing changes where torch has CUDA.
    """
    if torch.version.cuda is not None:
        yield
        return
    guards = _guards()
    before = guards[_CUDA_GUARD]
    guards[_CUDA_GUARD] = before or guards[_META_GUARD]
    try:
        yield
    finally:
        guards[_CUDA_GUARD] = before


@contextlib.contextmanager
def gradients() -> Iterator[None]:
    """Let autograd's engine, which requires an accelerator with streams, run on fakes.

    A torch without CUDA answers through tables of functions. While the context lasts copies of
    them say that it was built with CUDA and that all happens in one stream of one device.

    Raises:
        OSError: if the processor is not one of `_CONSTANTS`.
    """
    if torch.version.cuda is not None:
        yield
        return
    hooks = ctypes.CDLL(str(_LIBRARIES / "libtorch_cpu.so"))._ZN2at6detail12getCUDAHooksEv
    hooks.restype = ctypes.c_void_p
    code = _CONSTANTS.get(platform.machine())
    if code is None:
        raise OSError(f"gradients on fakes need one of {', '.join(_CONSTANTS)}")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page[: len(code)] = code
    one = ctypes.addressof(ctypes.c_char.from_buffer(page))
    with (
        _answering(hooks(), one, (_IS_BUILT, _HAS_CONTEXT)),
        _answering(_guards()[_META_GUARD], one, (_GET_STREAM, _EXCHANGE_STREAM)),
    ):
        yield


@contextlib.contextmanager
def _answering(thing: int, function: int, positions: tuple[int, ...]) -> Iterator[None]:
    """Replace some virtual functions of a C++ object by another one."""
    word = ctypes.sizeof(ctypes.c_void_p)
    size = _BEFORE_TABLE + _TABLE
    table_of = ctypes.cast(thing, ctypes.POINTER(ctypes.c_void_p))
    before = table_of[0] or 0
    table = (ctypes.c_void_p * size).from_buffer_copy(
        (ctypes.c_void_p * size).from_address(before - _BEFORE_TABLE * word)
    )
    for position in positions:
        table[_BEFORE_TABLE + position] = function
    table_of[0] = ctypes.addressof(table) + _BEFORE_TABLE * word
    try:
        yield
    finally:
        table_of[0] = before


def _guards() -> Any:
    library = ctypes.CDLL(str(_LIBRARIES / "libc10.so"))
    name = "_ZN3c104impl26device_guard_impl_registryE"
    return (ctypes.c_void_p * _DEVICE_TYPES).in_dll(library, name)


@contextlib.contextmanager
def autocast(half: torch.dtype) -> Iterator[None]:
    """Apply autocast as on a GPU; `torch.autocast` disables itself without CUDA."""
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
        mode: fake tensor mode of the fakes.
        weights: fakes of parameters and buffers by id.
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
    """Report calls of fused kernels inside the context.

    Args:
        record: function that receives name, operands and results of such a call.
        quiet: context in which calls are not recorded.
        half: dtype to which autocast lowers operands; None without autocast.
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
        query, key, value, attn_mask = fused_operands(query, key, value, attn_mask, half)
        width = query.shape[-1]
        short = -width % FLASH_ALIGNMENT
        if short and query.dtype != torch.float32:
            padded = (nn.functional.pad(tensor, (0, short)) for tensor in (query, key, value))
            query, key, value = padded
        if attn_mask is not None and attn_mask.requires_grad:  # its gradient has this shape
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        operands = [query, key, value, *([] if attn_mask is None else [attn_mask])]
        out: torch.Tensor = _FusedAttention.apply(record, quiet, *operands)
        return out[..., :width] if value.shape[-1] != width and short else out

    def layer(name: str) -> Callable[..., Any]:
        return lambda *args: _recurrent(name, args, record, quiet, half)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(nn.functional, "scaled_dot_product_attention", attention))
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            stack.enter_context(patch.object(torch._VF, name, layer(name), create=True))
        yield


class _FusedAttention(torch.autograd.Function):
    """One kernel forward and one record backward, as the fused libraries run it."""

    @staticmethod
    def forward(ctx: Any, record: Record, quiet: Callable[[], Any], *operands: Any) -> Any:
        query, _, value, *_ = operands
        with quiet():
            batch, heads, rows = query.shape[:3]
            out = query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)
            sums = query.new_empty(batch, heads, rows, dtype=torch.float32)
        record("attention", list(operands), [out])
        ctx.record, ctx.quiet = record, quiet
        ctx.save_for_backward(*operands, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        *operands, out, sums = ctx.saved_tensors
        with ctx.quiet():
            made = [torch.empty_like(t.transpose(1, 2)).transpose(1, 2) for t in operands[:3]]
            wanted = ctx.needs_input_grad[5:]
            made += [mask.new_empty(mask.shape) for mask in operands[3:] if any(wanted)]
        ctx.record("attention_backward", [grad, *operands, out, sums], made)
        return None, None, *made, *([None] * (len(operands) - len(made)))


def fused_operands(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    half: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return operands as a kernel of fused attention gets them: lowered, the mask in numbers."""
    if half is not None:
        query, key, value = (lowered(tensor, half) for tensor in (query, key, value))
        mask = None if mask is None else lowered(mask, half)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
    return query, key, value, mask


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
