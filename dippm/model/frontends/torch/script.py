"""Scripted and traced modules, as far as an export needs them treated apart.

`torch.export` refuses them by type but follows the operators that they run, so they are hidden
from it.
"""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from dippm.errors import ConversionError
from dippm.model.frontends.torch.module_surgery import with_parts
from dippm.model.frontends.torch.places import LONGEST_LINE
from dippm.model.frontends.torch.script_paths import flat

_FILE = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
_HERE = "<--- HERE"
"""How TorchScript's interpreter says where it stopped."""


def run_script(script: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a scripted module; its own `__call__` passes `self` twice during an export."""
    return script._c._get_method("forward")(*args, **kwargs)


def operators(script: torch.jit.ScriptModule) -> set[str]:
    """Return the names of the operators that a scripted module runs, such as "aten::relu"."""
    graph = getattr(script, "inlined_graph", None)
    return set() if graph is None else {node.kind() for node in flat(graph)}


def script_place(words: str) -> str:
    """Return the line of a script that its interpreter stopped at, "" if the words name none."""
    lines = words.splitlines()
    marks = [i for i, line in enumerate(lines) if line.endswith(_HERE)]
    files = [found for line in lines[: max(marks, default=0)] if (found := _FILE.match(line))]
    if not files:
        return ""
    name, line = os.path.basename(files[-1]["file"]), files[-1]["line"]
    return f"{name}, line {line}: {lines[marks[-1] - 1].strip()[:LONGEST_LINE]}"


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


def has_scripts(module: torch.nn.Module) -> bool:
    """Return whether a module, or a part of it, is scripted or traced."""
    kinds = torch.jit.ScriptModule | HiddenScript
    return any(isinstance(part, kinds) for part in module.modules())


def with_hidden_scripts(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module with its scripted parts hidden; the module itself is not changed."""
    if isinstance(module, torch.jit.ScriptModule):
        return module
    parts = [n for n, p in module.named_modules() if isinstance(p, torch.jit.ScriptModule)]
    outer = [n for n in parts if not any(n.startswith(other + ".") for other in parts)]
    if not outer:
        return module
    return with_parts(module, {n: HiddenScript(module.get_submodule(n)) for n in outer})
