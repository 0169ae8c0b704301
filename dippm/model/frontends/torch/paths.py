"""The module path of each operator of an exported program, as in the user's model.

`torch.export` records the stack of modules that ran. Where it cannot look inside, paths come from
elsewhere: those of a program in a file from its first export, those of a scripted module from its
own graph and the tree of its weights. A scripted module runs without calling the modules in it, so
its methods are walked call by call, and matched with the exported operators.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

STACK = "nn_module_stack"
_REPEATED = re.compile(r"@\d+")
"""`torch.export` numbers the calls of one module: "fc", "fc@1"."""


def note_paths(
    program: ExportedProgram, module: torch.nn.Module, prefix: str = ""
) -> ExportedProgram:
    """Write paths in `module` into each operator's stack of modules, in place.

    Args:
        program: an export of `module`, or of a wrapper of it.
        module: the user's model.
        prefix: path of `module` in the wrapper.
    """
    nodes = _operators(program.graph)
    paths = [path_of(node) for node in nodes]
    inner = [_within(path, prefix) for path in paths]
    outer = [[_within(path, prefix) for path in _stack_of(node)[:-1]] for node in nodes]
    if not any(inner):
        owners = _owners(program, nodes, module)
        inner = _of_first_export(nodes, module) or _of_script(nodes, module, owners)
        outer = [[] for _ in nodes]
    for node, path, callers in zip(nodes, inner, outer, strict=True):
        stack = [*(caller for caller in callers if caller != path), path]
        node.meta[STACK] = {str(i): (name, "") for i, name in enumerate(stack)}
    return program


def path_of(node: Node) -> str:
    """Return the path of the innermost module that ran an operator, "" for the outermost."""
    stack = _stack_of(node)
    return stack[-1] if stack else ""


def _stack_of(node: Node) -> list[str]:
    """Return the paths of the modules that ran an operator, outermost first."""
    return [_REPEATED.sub("", path) for path, _ in node.meta.get(STACK, {}).values()]


def _within(path: str, prefix: str) -> str:
    return path.removeprefix(prefix).removeprefix(".")


def _operators(graph: torch.fx.Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _of_first_export(nodes: list[Node], module: torch.nn.Module) -> list[str] | None:
    """Return the paths in the graph of the first export, if its operators are the same."""
    if not isinstance(module, GraphModule):
        return None
    before = _operators(module.graph)
    if [node.target for node in before] != [node.target for node in nodes]:
        return None
    return [path_of(node) for node in before]


def _owners(program: ExportedProgram, nodes: list[Node], module: torch.nn.Module) -> _Owners:
    """Return the modules that own the first weight read by each operator."""
    found: dict[int, list[str]] = {}
    for name, tensor in _weights(module):
        found.setdefault(id(tensor), []).append(name.rpartition(".")[0])
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    held: Mapping[str, object] = {**program.state_dict, **program.constants}
    by_input = {
        spec.arg.name: tuple(found[id(held[spec.target])])
        for spec in program.graph_signature.input_specs
        if spec.kind in kinds and spec.target in held and id(held[spec.target]) in found
    }
    return [
        next((by_input[read.name] for read in node.all_input_nodes if read.name in by_input), ())
        for node in nodes
    ]


def _weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


# Paths of a scripted module's operators, from its own graphs.

_Owners = list[tuple[str, ...]]
_CALL = "dippm::call"
_DEEPEST = 100


def _of_script(nodes: list[Node], module: torch.nn.Module, owners: _Owners) -> list[str]:
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
        return list(_script_method(module, "forward", "", 0))
    except (AttributeError, RuntimeError, LookupError):
        return []


def _script_method(module: Any, name: str, path: str, depth: int) -> Iterator[tuple[str, str]]:
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
            yield from _script_method(owner, calls[node.i("number")], place, depth + 1)
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


# The line of a model's own code at which an error arose.


LONGEST_LINE = 80
_DIPPM = str(Path(__file__).parents[3]) + os.sep
_CALLS_MODELS = str(Path(__file__).with_name("candidates.py"))
"""Frames beyond this file belong to the caller."""
_PYTHON = sysconfig.get_paths()["stdlib"]


def place_of(error: BaseException | None, module: torch.nn.Module | None = None) -> str:
    """Return the innermost line of a model's own code in an error's traceback, "" if none.

    Args:
        error: error that was raised while the model ran.
        module: the model; lines of files that define its parts are preferred to those of libraries
            that they call.
    """
    own = _files(module) if module is not None else frozenset()
    while error is not None:
        frames = [(code, line) for code, line in _frames(error) if not _is_foreign(code, own)]
        if frames:
            code, line = next((f for f in reversed(frames) if f[0].co_filename in own), frames[-1])
            return described(code, line)
        error = error.__cause__ or error.__context__
    return ""


def calling_place() -> str:
    """Return the innermost line of a model's own code in the current stack, "" if none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _CALLS_MODELS:
        if not _is_foreign(frame.f_code):
            return described(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return ""


def described(code: CodeType, line: int) -> str:
    """Return a line of code as its file, number and text."""
    text = linecache.getline(code.co_filename, line).strip()
    shown = text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + " ..."
    place = f"{Path(code.co_filename).name}, line {line}"
    return f"{place}: {shown}" if shown else place


def _frames(error: BaseException) -> Iterator[tuple[CodeType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lineno
        trace = trace.tb_next


def _is_foreign(code: CodeType, own: frozenset[str] = frozenset()) -> bool:
    """Return whether code is of PyTorch, DIPPM or Python rather than of a model or its library."""
    name = code.co_filename
    if name in own:
        return False
    if name.startswith(("<", _DIPPM, _torch())):
        return True
    return name.startswith(_PYTHON) and "site-packages" not in name


@cache
def _torch() -> str:
    import torch

    return str(Path(torch.__file__).parent) + os.sep


def _files(module: torch.nn.Module) -> frozenset[str]:
    codes = (
        getattr(getattr(type(part), "forward", None), "__code__", None) for part in module.modules()
    )
    names = {code.co_filename for code in codes if code is not None}
    return frozenset(name for name in names if not name.startswith(("<", _DIPPM, _torch())))
