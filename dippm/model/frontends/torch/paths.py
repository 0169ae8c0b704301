"""The module path of each operator of an exported program, as the user's model spells it.

`torch.export` notes the stack of modules that ran. What it cannot look into keeps its names by
other ways: a program from a file has them from its first export, and a scripted module in its own
graph and in the tree that its weights stand in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from dippm.model.frontends.torch.script_paths import Owners, of_script

STACK = "nn_module_stack"
_REPEATED = re.compile(r"@\d+")
"""`torch.export` numbers the calls of one module: "fc", "fc@1"."""


def note_paths(
    program: ExportedProgram, module: torch.nn.Module, prefix: str = ""
) -> ExportedProgram:
    """Let each operator's stack of modules hold their paths in `module`, in place.

    Args:
        program: an export of `module`, or of a wrapper of it.
        module: what the user calls the model.
        prefix: its path in the wrapper.
    """
    nodes = _operators(program.graph)
    paths = [path_of(node) for node in nodes]
    inner = [_within(path, prefix) for path in paths]
    outer = [[_within(path, prefix) for path in _stack_of(node)[:-1]] for node in nodes]
    if not any(inner):
        owners = _owners(program, nodes, module)
        inner = _of_first_export(nodes, module) or of_script(nodes, module, owners)
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
    """Return the paths of the modules that ran an operator, the outermost first."""
    return [_REPEATED.sub("", path) for path, _ in node.meta.get(STACK, {}).values()]


def _within(path: str, prefix: str) -> str:
    return path.removeprefix(prefix).removeprefix(".")


def _operators(graph: torch.fx.Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _of_first_export(nodes: list[Node], module: torch.nn.Module) -> list[str] | None:
    """Return the paths in the graph that was run again, if it is the same operator by operator."""
    if not isinstance(module, GraphModule):
        return None
    before = _operators(module.graph)
    if [node.target for node in before] != [node.target for node in nodes]:
        return None
    return [path_of(node) for node in before]


def _owners(program: ExportedProgram, nodes: list[Node], module: torch.nn.Module) -> Owners:
    """Return, for each operator, the modules that own the first weight that it reads."""
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
