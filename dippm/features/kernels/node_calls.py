"""Calls of a graph that no file was read for: its canonical operators, as they stand."""

from __future__ import annotations

from dippm.graph.calls import Call, CallSequence, Tensor
from dippm.graph.draft import item_bytes
from dippm.graph.model_graph import STATIC, ModelGraph, OpNode

_PRODUCTS = ("dense", "batch_matmul")


def calls_of(graph: ModelGraph) -> CallSequence:
    """Return one call for each operator, and for what it absorbed."""
    return _Calls(graph).sequence()


class _Calls:
    def __init__(self, graph: ModelGraph) -> None:
        self.graph = graph
        self.tensors: list[Tensor] = []
        self.calls: list[Call] = []
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
            size = max(1, node.param_bytes // item_bytes(node.dtype))
            rank2 = (size, 1) if node.op in _PRODUCTS else (size,)
            dtype = dtypes[0] if dtypes and "int8" in dtypes[0] else node.dtype
            size = node.param_bytes // item_bytes(dtype)
            inputs.append(self._new(Tensor(rank2, dtype, roots=(-1 - i,), is_parameter=True)))
        outputs = tuple(self._new(Tensor(shape, node.dtype)) for shape in node.out_shapes)
        spelled = tuple(op for op in node.absorbed if not op.startswith(STATIC) and op != "sdpa")
        del spelled
        self.calls.append(
            Call(node.op, node.attributes, tuple(inputs), outputs, path=node.path, node=i)
        )
        self.results.append(outputs)
