"""Module paths of a scripted module's operators, from its own graphs.

A scripted module runs without calling the modules in it, so nothing records which of them ran. So
its methods are walked call by call, and matched with the exported operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node

Owners = list[tuple[str, ...]]
_CALL = "dippm::call"
_DEEPEST = 100


def of_script(nodes: list[Node], module: torch.nn.Module, owners: Owners) -> list[str]:
    """Return the paths of a scripted module's operators, at least of those that read weights.

    The operators that ran appear in the module's graph in the same order, between those of
    branches not taken. If their first and their last possible match agree with each other and
    with the owners of all weights, the path is certain.
    """
    by_weights = [own[0] if own else "" for own in owners]
    listed = script_operators(module)
    kinds = [kind for kind, _ in listed]
    names = [str(getattr(node.target, "__name__", "")).partition(".")[0] for node in nodes]
    known = set(kinds)
    asked = [i for i, name in enumerate(names) if name in known]
    first = _match_in_order([names[i] for i in asked], kinds)
    last = _match_in_order([names[i] for i in reversed(asked)], kinds[::-1])
    if first is None or last is None:
        return by_weights
    paths = list(by_weights)
    for i, start, end in zip(asked, first, reversed(last), strict=True):
        path = listed[start][1]
        if path == listed[len(listed) - 1 - end][1]:
            if owners[i] and path not in owners[i]:
                return by_weights
            paths[i] = path
    return paths


def _match_in_order(names: Iterable[str], kinds: Sequence[str]) -> list[int] | None:
    """Return the first positions of names in `kinds`, in order; None if there are none."""
    positions, at = [], 0
    for name in names:
        try:
            at = kinds.index(name, at) + 1
        except ValueError:
            return None
        positions.append(at - 1)
    return positions


def script_operators(module: torch.nn.Module) -> list[tuple[str, str]]:
    """Return (operator, path) of each operator of a scripted module, branches included."""
    if not isinstance(module, torch.jit.ScriptModule):
        return []
    try:
        return list(_method(module, "forward", "", 0))
    except (AttributeError, RuntimeError, LookupError):
        return []


def _method(module: Any, name: str, path: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the operators of a method and of the methods it calls."""
    if depth > _DEEPEST:
        raise LookupError("methods that call each other")
    graph = getattr(module, name).graph.copy()
    calls = _keep_calls(graph)
    torch._C._jit_pass_inline(graph)  # functions only: method calls are hidden
    held = {next(graph.inputs()).debugName(): (module, path)}
    for node in flat(graph):
        kind = node.kind()
        value = node.inputsAt(0).debugName() if node.inputsSize() else ""
        if kind == "prim::GetAttr" and value in held:
            owner, place = held[value]
            attribute = getattr(owner, node.s("name"), None)
            if isinstance(attribute, torch.nn.Module):
                at = f"{place}.{node.s('name')}" if place else node.s("name")
                held[node.output().debugName()] = (attribute, at)
        elif kind == _CALL:
            owner, place = held[value]
            yield from _method(owner, calls[node.i("number")], place, depth + 1)
        elif kind.startswith("aten::") and any(str(o.type()) == "Tensor" for o in node.outputs()):
            yield kind.removeprefix("aten::"), path


def _keep_calls(graph: Any) -> list[str]:
    """Hide method calls from the inliner, in place; return the names of the methods."""
    calls: list[str] = []
    for node in list(graph.findAllNodes("prim::CallMethod")):
        hidden = graph.create(_CALL, list(node.inputs()), node.outputsSize())
        hidden.i_("number", len(calls))
        calls.append(node.s("name"))
        hidden.insertBefore(node)
        for before, after in zip(node.outputs(), hidden.outputs(), strict=True):
            after.setType(before.type())
            before.replaceAllUsesWith(after)
        node.destroy()
    return calls


def flat(block: Any) -> Iterator[Any]:
    """Yield the nodes of a TorchScript graph and of its nested blocks."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from flat(inner)
