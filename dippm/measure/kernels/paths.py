"""Modules that mark their calls in a profile by their path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MARK = "dippm.module:"


@contextmanager
def marked(module: torch.nn.Module) -> Iterator[None]:
    """Let each submodule mark its calls with `MARK` and its path; put everything back after.

    The hooks belong to no module: hooks of its own would keep attention layers from the fast path
    that they take without.
    """
    from torch.autograd.profiler import record_function
    from torch.nn.modules.module import (
        register_module_forward_hook,
        register_module_forward_pre_hook,
    )

    names = {part: name for name, part in module.named_modules()}
    entered: list[Any] = []

    def enter(part: Any, _: Any) -> None:
        mark = record_function(MARK + names[part]) if part in names else None
        if mark is not None:
            mark.__enter__()
        entered.append(mark)

    def leave(*_: Any) -> None:
        mark = entered.pop()
        if mark is not None:
            mark.__exit__(None, None, None)

    handles = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
