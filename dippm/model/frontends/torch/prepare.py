"""Modules and programs without their weights: copies on the meta device, evaluation mode.

Quantised layers become layers of float, and notes say so.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside wrappers that compile or replicate it."""
    for name, attribute in (("OptimizedModule", "_orig_mod"), ("DataParallel", "module")):
        if name in type(module).__name__ and isinstance(
            inner := getattr(module, attribute, None), torch.nn.Module
        ):
            return unwrapped(inner)
    return module


class _CopyToMeta(TorchFunctionMode):
    """Makes `copy.deepcopy` copy all tensors of a module to the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            memo[id(tensor)] = copied = tensor.detach().to("meta")
            return copied
        return func(*args, **(kwargs or {}))


def on_meta(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return a copy without data, None if the module cannot be copied."""
    if isinstance(module, torch.jit.ScriptModule):
        return None if any(p.device.type != "meta" for p in module.parameters()) else module
    memo: dict[int, Any] = {}
    try:
        for parameter in module.parameters():
            data = torch.empty_like(parameter, device="meta")
            memo[id(parameter)] = torch.nn.Parameter(data, requires_grad=False)
        with _CopyToMeta():
            copied: torch.nn.Module = copy.deepcopy(module, memo)
    except Exception:
        return None
    config: Any = getattr(copied, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False  # a cache is an output that one pass does not need
    return copied


_EAGER_ANSWERS: Mapping[str, Any] = {
    "is_torchdynamo_exporting": lambda: False,
    "is_torchdynamo_compiling": lambda: False,  # asked before version 5
    "find_packed_sequence_indices": lambda position_ids: None,
}
"""What functions of `transformers.masking_utils` answer in eager mode, for sequences not packed."""


@contextlib.contextmanager
def eager_masks() -> Iterator[None]:
    """Let models of transformers have the masks of eager mode within the block.

    In eager mode causal attention has no mask: `is_causal` is passed, and FlashAttention can run.
    An export would have a mask of all scores, and each of them would be computed.
    """
    masking = sys.modules.get("transformers.masking_utils")
    with contextlib.ExitStack() as stack:
        for name, answer in _EAGER_ANSWERS.items():
            if hasattr(masking, name):
                stack.enter_context(patch.object(masking, name, answer))
        yield


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Keep a module in evaluation mode, with eager masks; restore the mode of every part."""
    training = [m for m in module.modules() if getattr(m, "training", False)]
    # Exported programs and frozen scripts have no mode.
    with contextlib.suppress(NotImplementedError, AttributeError):
        module.eval()
    try:
        with eager_masks():
            yield
    finally:
        for m in training:
            m.training = True


@contextlib.contextmanager
def keeping_attributes(module: torch.nn.Module) -> Iterator[None]:
    """Undo a pass's assignments to parts of a module, such as anchors kept for the next pass.

    The next pass may have other sizes, and values traced by `torch.export` are useless outside. A
    part that a pass moves to another device (experts over several) stays where it is.
    """
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    before = [(vars(part), dict(vars(part)), dict(part._buffers)) for part in parts]
    move, ours = torch.nn.Module.to, {id(part) for part in parts}

    def stay(part: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        _, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        return part if id(part) in ours and dtype is None else move(part, *args, **kwargs)

    try:
        with patch.object(torch.nn.Module, "to", stay):
            yield
    finally:
        for part, (attributes, kept, buffers) in zip(parts, before, strict=True):
            attributes.clear()
            attributes.update(kept)
            part._buffers.clear()
            part._buffers.update(buffers)


def without_weights(program: ExportedProgram) -> ExportedProgram:
    """Replace the weights of a program by meta tensors, in place."""
    for name, tensor in program.state_dict.items():
        data = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        program.state_dict[name] = torch.nn.Parameter(data, False) if is_parameter else data
    for name, tensor in program.constants.items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel() > 1:
            program.constants[name] = torch.empty_like(tensor, device="meta")
    return program


# Replacing parts of a module.


def with_parts(
    module: nn.Module, parts: Mapping[str, nn.Module | None], path: str = ""
) -> nn.Module:
    """Return a shallow copy of a module with these parts replaced.

    Args:
        module: any module, which is not changed; parents of replaced parts are copied.
        parts: replacements by path.
        path: path of the module itself in these paths.
    """
    copied = module.__class__.__new__(module.__class__)
    copied.__dict__ = {**module.__dict__, "_modules": {}}
    for name, part in module._modules.items():
        inner = f"{path}.{name}" if path else name
        if part is None or inner in parts:
            copied._modules[name] = parts.get(inner)
        elif any(other.startswith(inner + ".") for other in parts):
            copied._modules[name] = with_parts(part, parts, inner)
        else:
            copied._modules[name] = part
    return copied


# Quantised layers as float ones.

AS_FLOAT = (
    "{count} quantised layers ({kinds}) were taken as layers of {dtype}: time and memory of "
    "quantised weights are not predicted"
)
CONFIGURED = (
    "the configuration asks for quantisation ({method}): the graph is of the architecture without "
    "it, in {dtype}"
)


def quantization_notes(module: nn.Module) -> tuple[str, ...]:
    """Return notes on a configuration that requests quantised weights."""
    asked = getattr(getattr(module, "config", None), "quantization_config", None)
    if not asked:
        return ()
    document = asked if isinstance(asked, Mapping) else getattr(asked, "__dict__", {})
    method = document.get("quant_method", "unnamed")
    bits = document.get("bits") or next((b for b in (4, 8) if document.get(f"load_in_{b}bit")), "")
    words = f"{getattr(method, 'value', method)}{f', {bits} bits' if bits else ''}"
    weight = next(iter(module.parameters()), torch.empty(0))
    return (CONFIGURED.format(method=words, dtype=str(weight.dtype).removeprefix("torch.")),)


def with_float_layers(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the module with float layers in place of torch's quantised ones, and a note.

    The module itself is not changed: parents of such layers are copied.
    """
    found = {name: part for name, part in module.named_modules() if _is_quantised(part)}
    twins = {name: _float_twin(part) for name, part in found.items()}
    if not found or any(twin is None for twin in twins.values()):
        return module, ()
    kinds = sorted({type(part).__name__ for part in found.values()})
    note = AS_FLOAT.format(count=len(found), kinds=", ".join(kinds), dtype="float32")
    if "" in twins:
        return twins[""] or module, (note,)
    return with_parts(module, twins), (note,)


def _is_quantised(part: nn.Module) -> bool:
    home = type(part).__module__
    # Containers and packed weights inside a quantised layer are part of it.
    return home.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")) and (
        "PackedParams" not in type(part).__name__
    )


def _float_twin(part: Any) -> nn.Module | None:
    """Return a float layer with the sizes of a quantised one; None if no kind corresponds."""
    kind = type(part).__name__
    with torch.device("meta"):
        if kind in ("Linear", "LinearReLU"):
            dense = nn.Linear(part.in_features, part.out_features)
            return nn.Sequential(dense, nn.ReLU()) if kind.endswith("ReLU") else dense
        plain = kind.removesuffix("ReLU").removesuffix("d").removeprefix("Conv")
        if kind.startswith("Conv") and plain in ("1", "2", "3"):
            layer = getattr(nn, f"Conv{plain}d")(
                part.in_channels,
                part.out_channels,
                part.kernel_size,
                part.stride,
                part.padding,
                part.dilation,
                part.groups,
            )
            return nn.Sequential(layer, nn.ReLU()) if kind.endswith("ReLU") else layer
        if kind in ("LSTM", "GRU"):
            return getattr(nn, kind)(  # type: ignore[no-any-return]
                part.input_size,
                part.hidden_size,
                part.num_layers,
                batch_first=part.batch_first,
                bidirectional=part.bidirectional,
            )
        if kind == "Embedding":
            return nn.Embedding(part.num_embeddings, part.embedding_dim)
        if kind in ("Quantize", "DeQuantize"):
            return nn.Identity()
    return None
