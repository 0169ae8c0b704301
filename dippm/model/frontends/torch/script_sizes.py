"""The sizes that a trace computes, turned from tensors into numbers.

`torch.jit.trace` writes what a model does with `x.shape[1]` as operators on tensors of one number.
During an export the contents of a tensor are unknown, and with them every size they lead to; the
same operators on plain numbers are followed.
"""

from __future__ import annotations

from typing import Any

import torch

from dippm.model.frontends.torch.script_paths import flat

_ON_NUMBERS = {
    "aten::add": "aten::add",
    "aten::sub": "aten::sub",
    "aten::rsub": "aten::sub",
    "aten::mul": "aten::mul",
    "aten::remainder": "aten::remainder",
    "aten::floor_divide": "aten::floordiv",
}
"""What an operator on tensors of one whole number is called on whole numbers."""

_READS = ("aten::Int", "aten::IntImplicit", "aten::ScalarImplicit")


def compute_sizes_as_numbers(script: torch.jit.ScriptModule) -> None:
    """Rewrite the methods of a module that was loaded for a conversion, in place."""
    modules: list[Any] = list(script.modules())
    for module in modules:
        for name in module._c._method_names():
            graph = module._c._get_method(name).graph
            if graph.findNode("prim::NumToTensor") is not None:
                _rewrite(graph)


def _rewrite(graph: Any) -> None:
    numbers: dict[str, Any] = {}
    """By the name of a tensor: the number in it."""
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
    """Return the whole number that an argument is or holds, None if it is unknown."""
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
    """Insert the operator on numbers before the one on tensors; return its result."""
    first, second, *factor = arguments
    if node.kind() == "aten::rsub":
        first, second = second, first
    if factor:
        second = _inserted(graph, node, "aten::mul", [second, factor[0]])
    return _inserted(graph, node, _ON_NUMBERS[node.kind()], [first, second])


def _inserted(graph: Any, node: Any, kind: str, arguments: list[Any]) -> Any:
    made = graph.create(kind, arguments, 1)
    made.output().setType(torch._C.IntType.get())
    made.insertBefore(node)
    return made.output()
