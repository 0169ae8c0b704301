"""Calls of a graph that no file was read for: its canonical operators, as they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dippm.model.graph.calls import CallSequence, OperatorCall, Tensor
from dippm.model.graph.draft import item_bytes
from dippm.model.graph.model_graph import STATIC, ModelGraph, OpNode
from dippm.model.graph.operators import operator

_FREE = ("view", "compute")
_PRODUCTS = ("dense", "batch_matmul")
_LOOKUPS = ("embedding", "gather")
"""Operators that read a table, which is their first operand."""


def calls_of(graph: ModelGraph) -> CallSequence:
    """Return one call for each operator, and for what it absorbed."""
    return _Calls(graph).sequence()


class _Calls:
    def __init__(self, graph: ModelGraph) -> None:
        self.graph = graph
        self.tensors: list[Tensor] = []
        self.calls: list[OperatorCall] = []
        self.inputs: list[int] = []
        self.results: list[tuple[int, ...]] = []
        self.producers: list[list[int]] = [[] for _ in graph.nodes]
        for producer, consumer in graph.edges:
            self.producers[consumer].append(producer)

    def sequence(self) -> CallSequence:
        for i, node in enumerate(self.graph.nodes):
            self._add(i, node)
        return CallSequence(
            tuple(self.tensors), tuple(self.calls), tuple(self.inputs), self.graph.batch
        )

    def _new(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _add(self, i: int, node: OpNode) -> None:
        given = [p for producer in self.producers[i] for p in self.results[producer]]
        inputs = []
        dtypes = node.in_dtypes or (node.dtype,) * len(node.in_shapes)
        for shape, dtype in zip(node.in_shapes, dtypes, strict=True):
            found = next((p for p in given if self.tensors[p].shape == shape), None)
            if found is None:
                found = self._new(Tensor(shape, dtype))
                self.inputs.append(found)
            else:
                given.remove(found)
            inputs.append(found)
        if node.param_bytes:
            dtype = dtypes[0] if dtypes and "int8" in dtypes[0] else node.dtype
            size = max(1, node.param_bytes // item_bytes(dtype))
            shape = (size, 1) if node.op in _PRODUCTS else (size,)
            parameter = self._new(Tensor(shape, dtype, roots=(-1 - i,), is_parameter=True))
            inputs.insert(0 if node.op in _LOOKUPS else len(inputs), parameter)
        steps = _steps(node)
        for op, attributes in steps[:-1]:
            between = self._new(Tensor(node.out_shapes[0], node.dtype))
            self.calls.append(_call(op, attributes, inputs, (between,), node, i))
            inputs = [between]
        outputs = tuple(self._new(Tensor(shape, node.dtype)) for shape in node.out_shapes)
        self.calls.append(_call(*steps[-1], inputs, outputs, node, i))
        self.results.append(outputs)


def _call(
    op: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[int],
    outputs: tuple[int, ...],
    node: OpNode,
    i: int,
) -> OperatorCall:
    return OperatorCall(op, attributes, tuple(inputs), outputs, path=node.path, node=i)


def _steps(node: OpNode) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what runs for an operator: itself and what was folded in, or the pieces it had."""
    if node.attributes.get("copies"):
        how = "contiguous" if node.op == "transpose" else "clone"
        return [(node.op, node.attributes), ("identity", {"copies": how})]
    folded: list[tuple[str, Mapping[str, Any]]] = [
        (op, {})
        for op in node.absorbed
        if not op.startswith(STATIC) and op != "sdpa" and operator(op).category not in _FREE
    ]
    if operator(node.op).category in ("compute", "recurrent"):
        return [(node.op, node.attributes), *(folded if node.op != "attention" else [])]
    return [*folded] or [(node.op, node.attributes)]
