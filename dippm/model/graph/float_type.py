"""The type in which a model stores its weights, and the same model in float32.

The conditions state the precision of a run for a model in float32: "fp16" is that model after
`.half()`. A file may store its weights in half, bfloat16 or double already. The kernels that run at
a precision do not depend on that, so predictions are made for the model in float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from dippm.model.graph.calls import Tensor
from dippm.model.graph.draft import item_bytes
from dippm.model.graph.macs import is_complex
from dippm.model.graph.model_graph import ModelGraph, OpNode, price
from dippm.model.graph.rules.products import BYTES

WIDE = "float32"


def float_type(graph: ModelGraph) -> str:
    """Return the type of most of a model's weights; "float32" if it has none or it is unknown."""
    elements: Counter[str] = Counter()
    for dtype, size in _weights(graph):
        elements[dtype] += size
    kinds = {dtype: n for dtype, n in elements.items() if dtype in ("float16", "bfloat16")}
    kinds |= {dtype: n for dtype, n in elements.items() if dtype in (WIDE, "float64")}
    return max(kinds, key=lambda dtype: kinds[dtype], default=WIDE)


def in_float32(graph: ModelGraph) -> ModelGraph:
    """Return the model with its weights in float32, or the model itself if they already are.

    Tensors of the type of most weights become float32; all others keep their type.
    """
    held = float_type(graph)
    if held == WIDE:
        return graph
    scale = item_bytes(WIDE) / item_bytes(held)
    others = sum(size * item_bytes(dtype) for dtype, size in _weights(graph) if dtype != held)
    program, calls = graph.program, graph.calls
    if program is not None:
        buffers = tuple(replace(b, dtype=_wide(b.dtype, held)) for b in program.buffers)
        program = replace(program, buffers=buffers)
    if calls is not None:
        tensors = tuple(
            replace(t, dtype=WIDE) if t.dtype == held else t  # recomputes its size
            for t in calls.tensors
        )
        calls = replace(calls, tensors=tensors)
    return replace(
        graph,
        nodes=tuple(_node(node, held, scale) for node in graph.nodes),
        inputs=tuple(replace(t, dtype=_wide(t.dtype, held)) for t in graph.inputs),
        outputs=tuple(replace(t, dtype=_wide(t.dtype, held)) for t in graph.outputs),
        param_bytes=others + round((graph.param_bytes - others) * scale),
        program=program,
        calls=calls,
        converted=graph.converted and in_float32(graph.converted),
    )


def weight_bytes(graph: ModelGraph, *, in_half: bool) -> float:
    """Return the bytes of a model's weights in a run.

    Args:
        graph: a model in float32, see `in_float32`.
        in_half: whether `.half()` was applied, which leaves complex numbers and integers
            unchanged.
    """
    if not in_half:
        return float(graph.param_bytes)
    kept = sum(size * item_bytes(dtype) for dtype, size in _weights(graph) if not _halves(dtype))
    return kept + 0.5 * (graph.param_bytes - kept)


def node_weight_bytes(node: OpNode, *, in_half: bool) -> float:
    """Return the bytes of the weights that an operator reads, counted as in `weight_bytes`."""
    return (0.5 if in_half and _halves(node.dtype) else 1.0) * node.param_bytes


def weights_by_node(graph: ModelGraph, *, in_half: bool) -> list[float]:
    """Return the bytes of the weights that each operator is the first to read, shape (N,).

    Tied weights are stored once, so the later readers have none.

    Args:
        graph: see `weight_bytes`.
        in_half: see `weight_bytes`.
    """
    found = [node_weight_bytes(node, in_half=in_half) for node in graph.nodes]
    if graph.calls is None:
        return found
    tensors = graph.calls.tensors
    whole: dict[tuple[int, ...], Tensor] = {}
    for tensor in tensors:
        if tensor.is_parameter and len(tensor.roots) == 1:
            whole.setdefault(tensor.roots, tensor)  # views of it come later
    first: dict[tuple[int, ...], int] = {}
    claimed: set[tuple[tuple[int, ...], int]] = set()
    for call in graph.calls.calls:
        for roots in (tensors[i].roots for i in call.inputs):
            if roots not in whole or len(whole[roots].shape) < 2 or (roots, call.node) in claimed:
                continue
            claimed.add((roots, call.node))
            if first.setdefault(roots, call.node) != call.node:
                width = 0.5 if in_half and _halves(whole[roots].dtype) else 1.0
                again = width * whole[roots].size * item_bytes(whole[roots].dtype)
                found[call.node] = max(0.0, found[call.node] - again)
    return found


def _halves(dtype: str) -> bool:
    return not is_complex(dtype) and dtype not in BYTES


def _weights(graph: ModelGraph) -> Iterator[tuple[str, int]]:
    """Yield type and size of each parameter that the model's layers read, once each.

    Parameters of norms are left out.
    """
    if graph.calls is None:
        return
    found: dict[tuple[int, ...], tuple[str, int]] = {}
    for tensor in graph.calls.tensors:
        counts = tensor.is_continuous
        counts |= tensor.dtype in BYTES and len(tensor.shape) >= 2
        if tensor.is_parameter and counts and len(tensor.roots) == 1:
            found.setdefault(tensor.roots, (tensor.dtype, tensor.size))  # views of it come later
    yield from found.values()


def _wide(dtype: str, held: str) -> str:
    return WIDE if dtype == held else dtype


def _node(node: OpNode, held: str, scale: float) -> OpNode:
    if held not in (node.dtype, *node.in_dtypes):
        return node
    return price(
        node.op,
        node.attributes,
        in_shapes=node.in_shapes,
        in_dtypes=tuple(_wide(dtype, held) for dtype in node.in_dtypes),
        out_shapes=node.out_shapes,
        dtype=_wide(node.dtype, held),
        param_bytes=round(node.param_bytes * (scale if _halves(node.dtype) else 1.0)),
        absorbed=node.absorbed,
        path=node.path,
    )
