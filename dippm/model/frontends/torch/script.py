"""Scripted and traced modules: the special treatment that an export needs.

`torch.export` refuses their type but can trace the operators that they run, so they are hidden from
it.
"""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from dippm.errors import ConversionError
from dippm.model.frontends.torch.paths import LONGEST_LINE, flat
from dippm.model.frontends.torch.prepare import with_parts

_FILE = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
_HERE = "<--- HERE"
"""Marker of the current line in errors of TorchScript's interpreter."""


def run_script(script: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a scripted module; its own `__call__` passes `self` twice during an export."""
    return script._c._get_method("forward")(*args, **kwargs)


def operators(script: torch.jit.ScriptModule) -> set[str]:
    """Return the names of the operators that a scripted module runs, such as "aten::relu"."""
    graph = getattr(script, "inlined_graph", None)
    return set() if graph is None else {node.kind() for node in flat(graph)}


def script_place(words: str) -> str:
    """Return the line at which a script's interpreter stopped, "" if the message names none."""
    lines = words.splitlines()
    marks = [i for i, line in enumerate(lines) if line.endswith(_HERE)]
    files = [found for line in lines[: max(marks, default=0)] if (found := _FILE.match(line))]
    if not files:
        return ""
    name, line = os.path.basename(files[-1]["file"]), files[-1]["line"]
    return f"{name}, line {line}: {lines[marks[-1] - 1].strip()[:LONGEST_LINE]}"


def check_not_rewritten(script: torch.jit.ScriptModule) -> None:
    """Refuse scripts rewritten by `torch.jit.optimize_for_inference` for one kind of processor.

    Raises:
        ConversionError: if it contains such operators.
    """
    if any("mkldnn" in name for name in operators(script)):
        raise ConversionError(
            "the scripted module was rewritten for this processor (optimize_for_inference)",
            "Give the module as it was before torch.jit.optimize_for_inference.",
        )


class HiddenScript(torch.nn.Module):
    """Runs a scripted module that is hidden from `torch.export`."""

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


# Sizes that a trace computes as tensors, rewritten to numbers.
#
# `torch.jit.trace` records computations with `x.shape[1]` as operators on tensors of one number.
# During an export the contents of a tensor are unknown, and so is every size computed from them;
# the same operators on plain numbers are traced.


_ON_NUMBERS = {
    "aten::add": "aten::add",
    "aten::sub": "aten::sub",
    "aten::rsub": "aten::sub",
    "aten::mul": "aten::mul",
    "aten::remainder": "aten::remainder",
    "aten::floor_divide": "aten::floordiv",
}
"""Operator on integers for each operator on tensors of one integer."""

_READS = ("aten::Int", "aten::IntImplicit", "aten::ScalarImplicit")


def compute_sizes_as_numbers(script: torch.jit.ScriptModule) -> None:
    """Rewrite size computations in the methods of a loaded module, in place."""
    modules: list[Any] = list(script.modules())
    for module in modules:
        for name in module._c._method_names():
            graph = module._c._get_method(name).graph
            if graph.findNode("prim::NumToTensor") is not None:
                _rewrite(graph)


def _rewrite(graph: Any) -> None:
    numbers: dict[str, Any] = {}
    """Number in a tensor by the tensor's name."""
    for node in list(flat(graph)):
        kind = node.kind()
        if kind in _READS:
            number = numbers.get(node.inputsAt(0).debugName())
            if number is not None:
                node.output().replaceAllUsesWith(number)
        elif kind == "prim::NumToTensor":
            if _is_whole(node.inputsAt(0)):
                numbers[node.output().debugName()] = node.inputsAt(0)
        elif kind in _ON_NUMBERS:
            arguments = [_number(graph, node, value, numbers) for value in node.inputs()]
            if all(a is not None for a in arguments):
                numbers[node.output().debugName()] = _on_numbers(graph, node, arguments)
    torch._C._jit_pass_dce(graph)


def _is_whole(value: Any) -> bool:
    return str(value.type()) == "int"


def _number(graph: Any, node: Any, value: Any, numbers: dict[str, Any]) -> Any:
    """Return the integer that an argument is or contains, None if it is unknown."""
    if _is_whole(value):
        return value
    if value.debugName() in numbers:
        return numbers[value.debugName()]
    made = value.node()
    if made.kind() != "prim::Constant" or "value" not in made.attributeNames():
        return None
    if made.kindOf("value") != "t":
        return None
    held = made.t("value")
    if held.dim() or held.dtype is not torch.int64:
        return None
    constant = graph.create("prim::Constant", [], 1)
    constant.i_("value", int(held))
    constant.output().setType(torch._C.IntType.get())
    constant.insertBefore(node)
    return constant.output()


def _on_numbers(graph: Any, node: Any, arguments: list[Any]) -> Any:
    """Insert the operator on integers before the one on tensors; return its result."""
    first, second, *factor = arguments
    if node.kind() == "aten::rsub":
        first, second = second, first
    if factor:
        second = _insert(graph, node, "aten::mul", [second, factor[0]])
    return _insert(graph, node, _ON_NUMBERS[node.kind()], [first, second])


def _insert(graph: Any, node: Any, kind: str, arguments: list[Any]) -> Any:
    made = graph.create(kind, arguments, 1)
    made.output().setType(torch._C.IntType.get())
    made.insertBefore(node)
    return made.output()
