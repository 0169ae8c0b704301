"""Programs whose data flow is explicit, although they update memory in place. Needs no TVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import _side_effectful_functions

from dippm.model.relax.torch_tracing import without_source

_MAPPED = ("_add_batch_dim", "_remove_batch_dim")
"""Marks of `torch.vmap` in a program: an axis is taken for the slices, and comes back."""


def with_data_flow(program: ExportedProgram) -> ExportedProgram:
    """Return the program in functional operators if in-place updates hide its data flow.

    Nothing is decomposed. Operators of other libraries are run on tensors without data, so their
    code must be at hand.
    """
    return _run_again(program) if mutates_shared_memory(program.graph) else program


def with_whole_batches(program: ExportedProgram) -> ExportedProgram:
    """Return the program with what `torch.vmap` runs written out for all slices at once.

    An export keeps the operators on one slice, between marks where the mapped axis goes and comes
    back. Maps of indices that no input has a part in (the masks of transformers) stay as they are:
    nothing in them costs.
    """
    return _run_again(program) if _maps_data(program.graph) else program


def _maps_data(graph: torch.fx.Graph) -> bool:
    """Return whether what is mapped are numbers, or indices made of what the program is given."""
    given: set[Node] = set()
    for node in graph.nodes:
        sources = node.all_input_nodes
        if node.op == "placeholder" or any(source in given for source in sources):
            given.add(node)
        if getattr(node.target, "__name__", "") in _MAPPED and (
            node in given or any(_is_real(one) for one in (node, *sources))
        ):
            return True
    return False


def _is_real(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _run_again(program: ExportedProgram) -> ExportedProgram:
    _drop_dropout(program.graph)
    with _keeping_unread(program.graph), without_source():
        program = program.run_decompositions({})
    return program


def _drop_dropout(graph: torch.fx.Graph) -> None:
    """Forget dropout at inference, in place: functional operators make a copy of it."""
    for node in list(graph.nodes):
        named = getattr(node.target, "__name__", "").partition(".")[0]
        source = node.args[0] if node.args else None
        trains = node.args[2] if len(node.args) > 2 else True
        returned = any(user.op == "output" for user in node.users)
        if named == "dropout" and trains is False and isinstance(source, Node) and not returned:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


@contextmanager
def _keeping_unread(graph: torch.fx.Graph) -> Iterator[None]:
    """Keep operators on tensors whose result nobody reads, as eager mode does."""
    operators = {node.target for node in graph.nodes if _makes_tensors(node.target)}
    added = operators - _side_effectful_functions
    _side_effectful_functions.update(added)
    try:
        yield
    finally:
        _side_effectful_functions.difference_update(added)


def _makes_tensors(target: object) -> bool:
    """Tell operators on tensors from sizes, which conversions of scripts leave unread."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return any("Tensor" in str(result.type) for result in target._schema.returns)


def mutates_shared_memory(graph: torch.fx.Graph) -> bool:
    """Return whether an in-place update is read later through another view of the same memory.

    ``y[:, :2] = x`` updates a slice and is read through `y`: only functional operators show that.
    Updates that are read through the updated value itself (``relu_``) are followed as they are.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    memory: dict[Node, Node] = {}
    views: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        base, written = _aliased(node)
        root = memory.get(base, base) if base is not None else node
        memory[node] = root
        views.setdefault(root, {root}).add(node)
        if written is not None:
            others = views[memory.get(written, written)] - {written, node}
            if any(order[user] > order[node] for view in others for user in view.users):
                return True
    return False


def _aliased(node: Node) -> tuple[Node | None, Node | None]:
    """Return the argument whose memory the result shares, and the argument that is written to."""
    if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        source = node.args[0]
        return (source if isinstance(source, Node) else None), None
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return None, None
    shared = written = None
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is None or not isinstance(value, Node):
            continue
        shared = shared or value
        if argument.alias_info.is_write:
            written = value
    return shared, written
