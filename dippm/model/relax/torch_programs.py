"""Exported PyTorch programs before translation: explicit data flow, operators of other libraries.

A program that updates memory in place gets functional operators if its data flow is hidden. One
that names operators of other libraries can only be read where they are declared: their schemas
suffice, because the program contains all shapes and nothing is run. Needs no TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import _side_effectful_functions, map_arg
from torch.utils._pytree import tree_flatten, tree_unflatten

from dippm.model.vision_operators import declare_vision_operators

_MAPPED = ("_add_batch_dim", "_remove_batch_dim")
"""Operators by which `torch.vmap` removes the mapped axis and restores it."""


def with_data_flow(program: ExportedProgram) -> ExportedProgram:
    """Return the program with functional operators if in-place updates hide its data flow.

    Nothing is decomposed. Operators of other libraries run on tensors without data, so their code
    must be available.
    """
    return _run_again(program) if mutates_shared_memory(program.graph) else program


def with_whole_batches(program: ExportedProgram) -> ExportedProgram:
    """Return the program with the body of `torch.vmap` applied to all slices at once.

    An export keeps operators on one slice, between the operators that remove and restore the
    mapped axis. Maps over indices that do not depend on inputs (masks of transformers) stay as
    they are, because they cost nothing.
    """
    return _run_again(program) if _maps_data(program.graph) else program


def _maps_data(graph: torch.fx.Graph) -> bool:
    """Return whether the mapped tensors are real numbers, or indices computed from inputs."""
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
    """Drop dropout at inference, in place: functional operators would copy for it."""
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
    """Keep tensor operators with unread results, as eager mode does."""
    operators = {node.target for node in graph.nodes if _makes_tensors(node.target)}
    added = operators - _side_effectful_functions
    _side_effectful_functions.update(added)
    try:
        yield
    finally:
        _side_effectful_functions.difference_update(added)


def _makes_tensors(target: object) -> bool:
    """Return whether an operator returns tensors rather than sizes, which scripts leave unread."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return any("Tensor" in str(result.type) for result in target._schema.returns)


def mutates_shared_memory(graph: torch.fx.Graph) -> bool:
    """Return whether an in-place update is later read through another view of its memory.

    ``y[:, :2] = x`` updates a slice and is read through `y`, which only functional operators
    express. Updates that are read through the updated value (``relu_``) need no change.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    memory: dict[Node, Node] = {}
    views: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        base, written = _alias_arguments(node)
        root = memory.get(base, base) if base is not None else node
        memory[node] = root
        views.setdefault(root, {root}).add(node)
        if written is not None:
            others = views[memory.get(written, written)] - {written, node}
            if any(order[user] > order[node] for view in others for user in view.users):
                return True
    return False


def _alias_arguments(node: Node) -> tuple[Node | None, Node | None]:
    """Return the argument that shares memory with the result, and the argument written to."""
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


# Composite operators, which torch itself decomposes: `hstack`, `ravel`, `view_as`.


def decompose_composites(program: ExportedProgram, is_known: Callable[[Node], bool]) -> None:
    """Replace unknown composite operators by the known operators they consist of, in place.

    One with an unknown part stays, so that it is reported under its own name.

    Args:
        program: exported program.
        is_known: whether a call has a meaning as it is.
    """
    for node in list(program.graph.nodes):
        if _is_composite(node.target) and not is_known(node):
            parts = _parts_of(node)
            if parts is not None and all(
                part.op == "call_function" and is_known(part) for part in _operators_of(parts)
            ):
                _replace_by_parts(program, node, parts)


def _is_composite(target: object) -> bool:
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace == "aten"
        and torch._C._dispatch_has_kernel_for_dispatch_key(
            target.name(), "CompositeImplicitAutograd"
        )
    )


def _parts_of(node: Node) -> Graph | None:
    """Return the operators that a composite operator consists of; None if it cannot be traced."""
    flat, form = tree_flatten((node.args, node.kwargs))

    def run(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        filled = [next(given) if isinstance(value, Node) else value for value in flat]
        args, kwargs = tree_unflatten(filled, form)
        return node.target.decompose(*args, **kwargs)  # type: ignore[union-attr]

    examples = [value.meta["val"] for value in flat if isinstance(value, Node)]
    with torch.no_grad(), suppress(Exception):  # whatever torch raises
        return make_fx(run)(*examples).graph
    return None


def _operators_of(parts: Graph) -> list[Node]:
    return [part for part in parts.nodes if part.op not in ("placeholder", "output")]


def _replace_by_parts(program: ExportedProgram, node: Node, parts: Graph) -> None:
    """Replace an operator by its parts."""
    graph = program.graph
    sources = [v for v in tree_flatten((node.args, node.kwargs))[0] if isinstance(v, Node)]
    placed = dict(zip(parts.find_nodes(op="placeholder"), sources, strict=True))
    with graph.inserting_before(node):
        for part in _operators_of(parts):
            placed[part] = graph.node_copy(part, placed.__getitem__)
            placed[part].meta = {**node.meta, "val": part.meta["val"]}
    results: Any = map_arg(parts.output_node().args[0], placed.__getitem__)
    if isinstance(results, Node):
        node.replace_all_uses_with(results)
        program.graph_signature.replace_all_uses(node.name, results.name)
    else:
        for user in list(node.users):  # each takes one result of several
            result = results[user.args[1]]
            user.replace_all_uses_with(result)
            program.graph_signature.replace_all_uses(user.name, result.name)
            graph.erase_node(user)
    graph.erase_node(node)


@contextmanager
def without_source() -> Iterator[None]:
    """Do not record source lines of operators, or generate code for graphs, in the block."""
    before = torch.fx.config.do_not_emit_stack_traces
    torch.fx.config.do_not_emit_stack_traces = True
    try:
        with _use_lazy_graph_module(True):
            yield
    finally:
        torch.fx.config.do_not_emit_stack_traces = before


# Operators of other libraries, which the exporting process has and the worker may lack.

OWN = frozenset(
    {"aten", "dippm", "higher_order", "inductor", "prim", "prims", "quantized", "torchvision"}
)
"""Namespaces with operators of known meaning; "dippm" contains our own."""


def is_foreign(target: object) -> bool:
    """Return whether the target of a call is an operator of another library."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in OWN


_VISION = "torchvision"
_libraries: list[Any] = []
"""Keeps the declarations alive; each ends with its object."""


def foreign_schemas(program: ExportedProgram) -> tuple[str, ...]:
    """Return the sorted schemas of a program's operators that are not part of torch.

    Those of torchvision are included: a worker that reads a program has not imported it.
    """
    found = set()
    for graph_module in program.graph_module.modules():
        graph = getattr(graph_module, "graph", None)
        for node in getattr(graph, "nodes", ()):
            if is_foreign(node.target) or getattr(node.target, "namespace", "") == _VISION:
                found.add(str(node.target._schema))
    return tuple(sorted(found))


def declare_foreign(schemas: Iterable[str]) -> None:
    """Declare missing operators, for the life of the process.

    Those of torchvision are left to its own import if it is installed.
    """
    schemas = tuple(schemas)
    if any(schema.startswith(_VISION + "::") for schema in schemas):
        declare_vision_operators()
    for schema in schemas:
        if _is_known(schema.partition("(")[0]):
            continue
        namespace, _, definition = schema.partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(definition)
        _libraries.append(library)


def _is_known(name: str) -> bool:
    namespace, _, rest = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), rest.partition(".")[0], None)
    return packet is not None and (rest.partition(".")[2] or "default") in packet.overloads()
