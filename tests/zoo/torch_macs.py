"""Multiply-accumulates of a torch module by torch's own flop counter, without data."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.zoo.case import Inputs, NotBuiltError


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
    make: Callable[[], torch.nn.Module], *, exported: bool = False
) -> Callable[[Inputs], int | None]:
    """Return what counts the MACs of a module for inputs of given shapes.

    Args:
        make: builds it.
        exported: count the exported program; language models look at the values of their mask,
            unless they are traced.
    """

    def count(inputs: Inputs) -> int | None:
        module: torch.nn.Module = on_meta(make)
        tensors = {
            tensor.name: torch.zeros(
                tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta"
            )
            for tensor in inputs
        }
        names = set(inspect.signature(module.forward).parameters)
        by_name = set(tensors) <= names
        args = () if by_name else tuple(tensors.values())
        kwargs = tensors if by_name else {}
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            module.config.use_cache = False  # type: ignore[union-attr]
        try:
            if exported:
                module = torch.export.export(module, args, kwargs, strict=False).module()
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                module(*args, **kwargs)
        except Exception:
            return None
        return counter.get_total_flops() // 2

    return count
