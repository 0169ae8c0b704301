"""The module path of each operator of an exported program, as the user's model spells it.

`torch.export` notes the stack of modules that ran. What it cannot look into keeps its names by
other ways: a program from a file has them from its first export, and the weights of a scripted
module still stand in the tree of its submodules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

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
    """Leave one entry in each operator's stack of modules, in place: the path in `module`.

    Args:
        program: an export of `module`, or of a wrapper of it.
        module: what the user calls the model.
        prefix: its path in the wrapper.
    """
    nodes = _operators(program.graph)
    paths = [path_of(node) for node in nodes]
    inner = [path.removeprefix(prefix).removeprefix(".") for path in paths]
    if not any(inner):
        inner = _of_first_export(nodes, module) or _by_weights(program, nodes, module)
    for node, path in zip(nodes, inner, strict=True):
        node.meta[STACK] = {"": (path, "")}
    return program


def path_of(node: Node) -> str:
    """Return the path of the innermost module that ran an operator, "" for the outermost."""
    stack = list(node.meta.get(STACK, {}).values())
    return _REPEATED.sub("", stack[-1][0]) if stack else ""


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


def _by_weights(program: ExportedProgram, nodes: list[Node], module: torch.nn.Module) -> list[str]:
    """Return, for operators that read weights, the path of the module that owns the first."""
    names = {id(tensor): name for name, tensor in _weights(module)}
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    held: Mapping[str, object] = {**program.state_dict, **program.constants}
    owners = {
        spec.arg.name: names[id(held[spec.target])].rpartition(".")[0]
        for spec in program.graph_signature.input_specs
        if spec.kind in kinds and spec.target in held and id(held[spec.target]) in names
    }
    return [
        next((owners[read.name] for read in node.all_input_nodes if read.name in owners), "")
        for node in nodes
    ]


def _weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
