"""Higher-order operators of an exported program: regions with a setting, and flex attention.

`torch.export` keeps the body of ``with torch.autocast(...)`` as an inner graph. The setting does
not affect shapes, so the region is inlined. The function that modifies the scores of
`flex_attention` is an inner graph as well, which its single kernel evaluates in place.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.nn.modules import transformer

REGIONS = frozenset({"wrap_with_autocast", "wrap_with_set_grad_enabled"})


FLEX = (
    "flex_attention was read as attention to all positions: blocks that its mask leaves out are "
    "counted, what it does to each score is not"
)


@contextmanager
def autocast_without_data() -> Iterator[None]:
    """Make torch's own layers run on meta tensors.

    ``torch.autocast(x.device.type)`` opens a region there, and `nn.TransformerEncoder` skips the
    check whether its mask is causal.
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
    """Replace `flex_attention` by attention, in place; return notes for the user."""
    graph = program.graph
    found = [node for node in graph.nodes if _name(node) == "flex_attention"]
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
        for node in [n for n in graph.nodes if n.op == "get_attr" and not n.users]:
            graph.erase_node(node)
        program.graph_module.delete_all_unused_submodules()
        program.graph_module.recompile()
    return (FLEX,) if found else ()


def _inline(module: torch.nn.Module) -> None:
    if not isinstance(module, GraphModule):
        return
    regions = [node for node in module.graph.nodes if _name(node) in REGIONS]
    for node in regions:
        place = next(i for i, a in enumerate(node.args) if _name(a) == "get_attr")
        graph: Any = node.args[place]
        inner = module.get_submodule(graph.target)
        _inline(inner)
        if isinstance(inner, GraphModule) and not _has_parts(inner):
            _replace(node, inner, node.args[place + 1 :])
    if regions:
        for node in [n for n in module.graph.nodes if n.op == "get_attr" and not n.users]:
            module.graph.erase_node(node)
        module.delete_all_unused_submodules()
        module.recompile()


def _replace(node: Node, inner: GraphModule, arguments: tuple[Any, ...]) -> None:
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


def _name(node: Any) -> str:
    if not isinstance(node, Node):
        return ""
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else node.op
