"""Replacement of the higher-order operators of an exported program by plain operators.

`torch.cond`, `scan`, `map` and similar operators contain graphs. If data decide which branch runs,
the most expensive one is used, as in ONNX, TensorFlow and Paddle. A loop over the rows of a tensor
is unrolled; a loop whose length depends on data is read as one iteration. Other operators of this
kind remain, as unknown operators.

`torch.export` keeps the body of ``with torch.autocast(...)`` as an inner graph. The setting does
not affect shapes, so the region is inlined. The function that modifies the scores of
`flex_attention` is an inner graph as well, which its single kernel evaluates in place: it is read
as plain attention.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.nn.modules import transformer

from dippm.model.frontends.torch.paths import path_of

MAX_STEPS = 4200
"""Maximum number of steps of a loop that is unrolled, as for TensorFlow.

It exceeds four times the largest marker batch.
"""
MAX_OPERATIONS = 100_000
"""Maximum number of operators of all unrolled loops of a model."""
BRANCH = "data decide which of {count} branches of {name} runs: the costliest was read"
ROUND = "the loop {name} runs as long as its data say: one round of it was read"
UNCOUNTED = "the loop {name} of {steps:,} steps is too long to be written out: it stands for one "
UNCOUNTED += "operator, and what it computes is not counted"
_ATEN = torch.ops.aten
_REGIONS = ("invoke_subgraph", "tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint",
            "hints_wrapper", "strict_mode", "local_map_hop")  # fmt: skip
"""Regions that only carry a setting; `REGIONS` lists those of `torch.export`."""


def unfold_control_flow(program: ExportedProgram) -> tuple[str, ...]:
    """Inline the operators of branches and loops, in place; return notes on assumptions.

    Inner graphs are inlined before outer ones.
    """
    unfolding = _Unfolding()
    unfolding.unfold(program.graph_module)
    return tuple(unfolding.notes)


class _Unfolding:
    """Replaces the higher-order operators of one program.

    Attributes:
        notes: notes on assumptions, in order and without duplicates.
        left: number of operators that loops may still be unrolled to.
    """

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}
        self.left = MAX_OPERATIONS

    def unfold(self, module: GraphModule) -> None:
        """Inline the operators of a graph that contain graphs, innermost first."""
        found = [n for n in module.graph.nodes if _is_higher_order(n)]
        for node in found:
            for part in _graphs(module, node):
                self.unfold(part)
            unfold = _BY_NAME.get(str(node.target.__name__))
            results = unfold(self, _Region(module, node)) if unfold else None
            if results is not None:
                _replace(node, results)
        if found:
            _remove_unused_graphs(module)

    def branch(self, place: _Region) -> list[Any] | None:
        """Inline the branch with the most arithmetic."""
        ways, operands = place.graphs, place.arguments[3]
        chosen = max(ways, key=_graph_work)
        self.notes[BRANCH.format(count=len(ways), name=place.name)] = None
        return place.copy(chosen, list(operands))

    def loop(self, place: _Region) -> list[Any] | None:
        """Inline the condition and the body of a loop once."""
        condition, body = place.graphs
        given = [*place.arguments[2], *place.arguments[3]]
        self.notes[ROUND.format(name=place.name)] = None
        place.copy(condition, given)
        return place.copy(body, given)

    def scan(self, place: _Region) -> list[Any] | None:
        """Unroll a loop that carries states over the rows of tensors."""
        _, states, rows, others = place.arguments[:4]
        return self._unroll_rows(place, list(states), list(rows), list(others))

    def map(self, place: _Region) -> list[Any] | None:
        """Unroll a function of each row."""
        return self._unroll_rows(place, [], list(place.arguments[1]), list(place.arguments[2]))

    def _unroll_rows(
        self, place: _Region, states: list[Any], rows: list[Any], others: list[Any]
    ) -> list[Any] | None:
        """Inline a body once per row; return the last states, then the stacked results.

        None if the loop is empty or too long; a note then says that it is not counted.
        """
        (body,), steps = place.graphs, int(rows[0].meta["val"].shape[0])
        size = steps * len(body.graph.nodes)
        if steps > MAX_STEPS or size > self.left or not steps:
            self.notes[UNCOUNTED.format(name=place.name, steps=steps)] = None
            return None
        self.left -= size
        formal = [n for n in body.graph.nodes if n.op == "placeholder"][len(states) :]
        written: list[list[Any]] = []
        carried = len(states)
        for i in range(steps):
            given = [
                place.add(_ATEN.select.int, (row, 0, i), one.meta["val"])
                for row, one in zip(rows, formal, strict=False)
            ]
            results = place.copy(body, [*states, *given, *others])
            states = results[:carried]
            written.append(results[carried:])
        values = list(_flatten(place.node.meta["val"]))[carried:]
        stacked = [
            place.add(_ATEN.stack.default, (list(parts),), value)
            for parts, value in zip(zip(*written, strict=True), values, strict=True)
        ]
        return [*states, *stacked]

    def region(self, place: _Region) -> list[Any] | None:
        """Inline a region."""
        (body, *others), arguments = place.graphs, list(_flatten(place.node.args))
        given = [a for a in arguments if isinstance(a, Node) and a.op != "get_attr"]
        formal = [n for n in body.graph.nodes if n.op == "placeholder"]
        if others or len(given) != len(formal):
            return None
        return place.copy(body, given)


_BY_NAME: dict[str, Callable[[_Unfolding, _Region], list[Any] | None]] = {
    "cond": _Unfolding.branch,
    "while_loop": _Unfolding.loop,
    "scan": _Unfolding.scan,
    "map_impl": _Unfolding.map,
    **dict.fromkeys(_REGIONS, _Unfolding.region),
}


class _Region:
    """A node with inner graphs, before which their operators are inserted."""

    def __init__(self, module: GraphModule, node: Node) -> None:
        self.module, self.node = module, node
        self.arguments: Any = node.args
        self.graphs = list(_graphs(module, node))
        path = path_of(node).removeprefix("module").removeprefix(".")
        self.name = path or node.name

    def add(self, target: Any, args: tuple[Any, ...], value: Any) -> Node:
        """Insert a call of an operator before the node."""
        with self.module.graph.inserting_before(self.node):
            made = self.module.graph.call_function(target, args)
        made.meta = {k: v for k, v in self.node.meta.items() if k == "nn_module_stack"}
        made.meta["val"] = value
        return made

    def copy(self, inner: GraphModule, given: list[Any]) -> list[Any]:
        """Copy the operators of a graph before the node; return its results."""
        formal = [n for n in inner.graph.nodes if n.op == "placeholder"]
        values: dict[Node, Any] = dict(zip(formal, given, strict=True))
        for node in inner.graph.nodes:
            if node.op == "output":
                return [values.get(a, a) for a in _flatten(node.args[0])]
            if node.op == "placeholder":
                continue
            with self.module.graph.inserting_before(self.node):
                made = self.module.graph.node_copy(node, values.__getitem__)
            made.meta.pop("custom", None)  # lifetimes of a single step are meaningless
            if node.op == "get_attr":
                made.target = self._adopt_attribute(inner, str(node.target))
            values[node] = made
        return []

    def _adopt_attribute(self, inner: GraphModule, name: str) -> str:
        """Move an attribute of the inner module to the outer one; return its name there."""
        value: Any = inner
        for step in name.split("."):
            value = getattr(value, step)
        free = name.replace(".", "_")
        while hasattr(self.module, free) and getattr(self.module, free) is not value:
            free += "_"
        setattr(self.module, free, value)
        return free


def _remove_unused_graphs(module: GraphModule) -> None:
    """Remove the inner graphs that no node refers to any more, and recompile."""
    for node in [n for n in module.graph.nodes if n.op == "get_attr" and not n.users]:
        module.graph.erase_node(node)
    module.delete_all_unused_submodules()
    module.recompile()


def _replace(node: Node, results: list[Any]) -> None:
    """Replace a node, or the items that are read of it, by results."""
    for user in list(node.users):
        if user.target is operator.getitem:
            index: Any = user.args[1]
            if index < len(results):  # others are not read
                user.replace_all_uses_with(results[index])
            node.graph.erase_node(user)
    if node.users:
        node.replace_all_uses_with(results[0])
    node.graph.erase_node(node)


def _is_higher_order(node: Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator)


def _graphs(module: GraphModule, node: Node) -> Iterator[GraphModule]:
    """Yield the inner graphs among the arguments of a node."""
    for argument in _flatten((node.args, tuple(node.kwargs.values()))):
        if isinstance(argument, Node) and argument.op == "get_attr":
            part = getattr(module, str(argument.target), None)
            if isinstance(part, GraphModule):
                yield part


def _graph_work(module: GraphModule) -> int:
    """Estimate the arithmetic of a graph in multiply-accumulates, only to compare branches."""
    return sum(_node_work(node) for node in module.graph.nodes if node.op == "call_function")


def _node_work(node: Node) -> int:
    written = sum(_size(value) for value in _flatten(node.meta.get("val")))
    name = str(getattr(node.target, "__name__", "")).partition(".")[0]
    shapes = [_shape(argument) for argument in _flatten(node.args) if isinstance(argument, Node)]
    if "conv" in name and len(shapes) > 1:
        return written * prod(shapes[1][1:])
    if name in ("linear", "matmul", "mm", "bmm", "mv", "einsum") and shapes and shapes[0]:
        return written * int(shapes[0][-1])
    if name in ("addmm", "baddbmm") and len(shapes) > 1 and shapes[1]:
        return written * int(shapes[1][-1])
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        return prod(shapes[0][:2]) * sum(prod(s) for s in shapes[1:] if len(s) == 2)
    if name == "scaled_dot_product_attention" and len(shapes) > 1:
        return 2 * written * int(shapes[1][-2])
    return written


def _shape(node: Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _size(value: Any) -> int:
    return prod(value.shape) if isinstance(value, torch.Tensor) else 0


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


# Regions of `torch.export` that only carry a setting, and flex attention.

REGIONS = frozenset({"wrap_with_autocast", "wrap_with_set_grad_enabled"})
"""Operators of `torch.export` whose inner graph runs under a setting."""

FLEX = (
    "flex_attention was read as attention to all positions: blocks that its mask leaves out are "
    "counted, what it does to each score is not"
)


@contextmanager
def autocast_without_data() -> Iterator[None]:
    """Let torch's layers run on meta tensors within a block.

    ``torch.autocast(x.device.type)`` accepts the device "meta", and `nn.TransformerEncoder` does
    not read its mask to find out whether it is causal.
    """
    before, detect = torch.autocast.__init__, transformer._detect_is_causal_mask

    def is_causal_as_said(mask: Any, is_causal: bool | None = None, size: Any = None) -> bool:
        # The check of a mask's data only selects a hint; the work is the same.
        return bool(is_causal)

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        before(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    torch.autocast.__init__ = init  # type: ignore[method-assign]
    transformer._detect_is_causal_mask = is_causal_as_said
    try:
        yield
    finally:
        torch.autocast.__init__ = before  # type: ignore[method-assign]
        transformer._detect_is_causal_mask = detect


def inline_regions(program: ExportedProgram) -> None:
    """Inline the operators of regions into the outer graph, in place."""
    _inline(program.graph_module)


def with_plain_attention(program: ExportedProgram) -> tuple[str, ...]:
    """Replace `flex_attention` by plain attention, in place; return notes for the user.

    Raises:
        ValueError: if more than the first result of a call is read.
    """
    graph = program.graph
    found = [node for node in graph.nodes if _called_name(node) == "flex_attention"]
    for node in found:
        query, key, value = node.args[:3]
        groups = query.meta["val"].shape[1] != key.meta["val"].shape[1]
        results = {user.args[1]: user for user in node.users}
        with graph.inserting_before(node):
            plain = graph.call_function(
                torch.ops.aten.scaled_dot_product_attention.default,
                (query, key, value),
                {"enable_gqa": groups} if groups else {},
            )
        plain.meta = {**node.meta, "val": node.meta["val"][0]}
        if 0 in results:
            results[0].replace_all_uses_with(plain)
            program.graph_signature.replace_all_uses(results[0].name, plain.name)
        if any(user.users for place, user in results.items() if place):
            raise ValueError("flex_attention gives more than its result, which nothing stands for")
        for user in results.values():
            graph.erase_node(user)
        graph.erase_node(node)
    if found:
        _remove_unused_graphs(program.graph_module)
    return (FLEX,) if found else ()


def _inline(module: torch.nn.Module) -> None:
    """Inline the regions of a graph, innermost first; those with further inner graphs remain."""
    if not isinstance(module, GraphModule):
        return
    regions = [node for node in module.graph.nodes if _called_name(node) in REGIONS]
    for node in regions:
        place = next(i for i, a in enumerate(node.args) if _called_name(a) == "get_attr")
        graph: Any = node.args[place]
        inner = module.get_submodule(graph.target)
        _inline(inner)
        if isinstance(inner, GraphModule) and not _has_parts(inner):
            _inline_region(node, inner, node.args[place + 1 :])
    if regions:
        _remove_unused_graphs(module)


def _inline_region(node: Node, inner: GraphModule, arguments: tuple[Any, ...]) -> None:
    graph = node.graph
    places = [n for n in inner.graph.nodes if n.op == "placeholder"]
    values: dict[Any, Any] = dict(zip(places, arguments, strict=True))
    with graph.inserting_before(node):
        results: Any = graph.graph_copy(inner.graph, values)
    if not isinstance(results, list | tuple):
        node.replace_all_uses_with(results)
    else:
        for user in [user for user in node.users if user.target is operator.getitem]:
            index: Any = user.args[1]
            user.replace_all_uses_with(results[index])
            graph.erase_node(user)
    graph.erase_node(node)


def _has_parts(module: GraphModule) -> bool:
    return any(node.op == "get_attr" for node in module.graph.nodes)


def _called_name(node: Any) -> str:
    if not isinstance(node, Node):
        return ""
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else node.op
