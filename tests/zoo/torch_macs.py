"""Multiply-accumulates of a torch module by torch's own flop counter, without data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.zoo.case import Inputs, NotBuiltError

MOST_PARAMETERS = 300_000_000
"""More are not run with data."""


def on_meta(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Build a module without data; with real data first where its constructor reads numbers.

    Raises:
        NotBuiltError: if the library cannot build it either way.
    """
    try:
        with torch.device("meta"):
            return make().eval()
    except Exception:
        pass
    try:
        return make().eval().to("meta")
    except Exception as error:
        raise NotBuiltError(f"{type(error).__name__}: {error}") from error


def flop_counter(
    make: Callable[[], torch.nn.Module],
    *,
    exported: bool = False,
    given: Mapping[str, Any] | None = None,
) -> Callable[[Inputs], int | None]:
    """Return what counts the MACs of a module for inputs of given shapes.

    A module that does not run without data is counted as its exported program, or with data.

    Args:
        make: builds it.
        exported: count the exported program at once; language models look at the values of their
            mask, unless they are traced.
        given: what `input=` was given, if its names lead into tuples and dictionaries.
    """

    def count(inputs: Inputs) -> int | None:
        module: torch.nn.Module = on_meta(make)
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            module.config.use_cache = False  # type: ignore[union-attr]
        args, kwargs = _arguments(module, inputs, given or {})
        attempts = [lambda: _counted(_traced(module, args, kwargs), args, kwargs)]
        if not exported:
            attempts.insert(0, lambda: _counted(module, args, kwargs))
        if sum(parameter.numel() for parameter in module.parameters()) < MOST_PARAMETERS:
            with_data = _arguments(module, inputs, given or {}, "cpu")
            attempts.append(lambda: _counted_with_data(make().eval(), *with_data))
        for attempt in attempts:
            try:
                return attempt()
            except Exception:
                continue
        return None

    return count


def _counted(module: torch.nn.Module, args: Any, kwargs: Any) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*args, **kwargs)
    return counter.get_total_flops() // 2


def _counted_with_data(module: torch.nn.Module, args: Any, kwargs: Any) -> int:
    with sdpa_kernel(SDPBackend.MATH):  # the counter has no formula for the CPU's fused attention
        return _counted(module, args, kwargs)


def _traced(module: torch.nn.Module, args: Any, kwargs: Any) -> torch.nn.Module:
    return torch.export.export(module, args, kwargs, strict=False).module()


def _arguments(
    module: torch.nn.Module, inputs: Inputs, given: Mapping[str, Any], device: str = "meta"
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    tensors: dict[str, Any] = {
        tensor.name: torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype), device=device)
        for tensor in inputs
    }
    tree: dict[str, Any] = {}
    for name, value in given.items():
        *path, last = name.split(".")
        branch = tree
        for step in path:
            branch = branch.setdefault(step, {})
        is_number = isinstance(value, str) and value.startswith("value:")
        branch[last] = int(value[6:]) if is_number else tensors[name.replace(".", "_")]
    if tree:
        return (), {name: _plain(value) for name, value in tree.items()}
    if set(tensors) <= set(inspect.signature(module.forward).parameters):
        return (), tensors
    return tuple(tensors.values()), {}


def _plain(value: Any) -> Any:
    """Return a dictionary, or a tuple if its keys are 0, 1, ..."""
    if not isinstance(value, dict):
        return value
    parts = {key: _plain(part) for key, part in value.items()}
    return tuple(parts.values()) if all(key.isdigit() for key in parts) else parts
