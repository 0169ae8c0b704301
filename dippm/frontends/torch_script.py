"""Scripted and traced modules, as far as an export needs them treated apart.

`torch.export` refuses them by type but follows the operators that they run, so they are hidden
from it.
"""

from __future__ import annotations

from typing import Any

import torch

from dippm.errors import ConversionError
from dippm.frontends.torch_parts import with_parts
from dippm.frontends.torch_script_paths import flat


def run_script(script: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a scripted module; its own `__call__` passes `self` twice during an export."""
    return script._c._get_method("forward")(*args, **kwargs)


def operators(script: torch.jit.ScriptModule) -> set[str]:
    """Return the names of the operators that a scripted module runs, such as "aten::relu"."""
    graph = getattr(script, "inlined_graph", None)
    return set() if graph is None else {node.kind() for node in flat(graph)}


def check_not_rewritten(script: torch.jit.ScriptModule) -> None:
    """Refuse what `torch.jit.optimize_for_inference` wrote: its operators run on one processor.

    Raises:
        ConversionError: if it holds such operators.
    """
    if any("mkldnn" in name for name in operators(script)):
        raise ConversionError(
            "the scripted module was rewritten for this processor (optimize_for_inference)",
            "Give the module as it was before torch.jit.optimize_for_inference.",
        )


class HiddenScript(torch.nn.Module):
    """Runs a scripted module that `torch.export` does not see."""

    def __init__(self, script: torch.nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "script", script)

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return run_script(self.script, *args, **kwargs)


def with_hidden_scripts(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module with its scripted parts hidden; the module itself is not changed."""
    if isinstance(module, torch.jit.ScriptModule):
        return module
    parts = [n for n, p in module.named_modules() if isinstance(p, torch.jit.ScriptModule)]
    outer = [n for n in parts if not any(n.startswith(other + ".") for other in parts)]
    if not outer:
        return module
    return with_parts(module, {n: HiddenScript(module.get_submodule(n)) for n in outer})
