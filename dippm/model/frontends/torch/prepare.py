"""Modules and programs without their weights: copies on the meta device, evaluation mode."""

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
