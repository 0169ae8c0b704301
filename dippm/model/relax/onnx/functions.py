"""Local functions of an ONNX file: inlined, if that ends and does not explode."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from dippm.errors import ConversionError

MAX_INLINED = 1_000_000
"""Operators after inlining; a few functions that call each other twice reach any number."""

_Key = tuple[str, str]


def inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without functions.

    Raises:
        ValueError: if the functions cannot be inlined.
        ConversionError: if they call themselves, or become too many operators.
    """
    from onnx import inliner

    _check_growth(model)
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        raise ValueError(f"its functions cannot be inlined: {error}") from error


def _check_growth(model: onnx.ModelProto) -> None:
    """Count the operators that inlining leads to, callees before callers."""
    calls = {(f.domain, f.name): _called(f.node) for f in model.functions}
    sizes: dict[_Key, int] = {}
    active: set[_Key] = set()
    stack = [(key, False) for key in calls]
    while stack:
        key, is_left = stack.pop()
        if is_left:
            active.discard(key)
            sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
        elif key in active:
            raise ConversionError(
                f"the ONNX function {key[1]!r} calls itself",
                "Check the file with onnx.checker.check_model, or export it again.",
            )
        elif key not in sizes:
            active.add(key)
            stack.append((key, True))
            stack += [(callee, False) for callee in calls[key] if callee in calls]
    total = sum(sizes.get(callee, 1) for callee in _called(model.graph.node))
    if total > MAX_INLINED:
        raise ConversionError(
            f"the ONNX functions become {total:,} operators when they are written out, more than "
            f"{MAX_INLINED:,}",
            "Export the model without functions, or check where the file comes from.",
        )


def _called(nodes: Iterable[onnx.NodeProto]) -> list[_Key]:
    """Return the operators of nodes and of the graphs inside them."""
    found: list[_Key] = []
    left = list(nodes)
    while left:
        node = left.pop()
        found.append((node.domain, node.op_type))
        for attribute in node.attribute:
            left += attribute.g.node
            for graph in attribute.graphs:
                left += graph.node
    return found
