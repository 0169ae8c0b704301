"""Traced modules of KernelBench → raw graphs, so that they take the same road as model files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from dippm.graph import build
from dippm.graph.model_graph import ModelGraph
from dippm.relax.raw_graph import Attribute, RawGraph, RawOperator, RawValue

PASSED_THROUGH = ("getitem", "detach", "detach_")


def graph_of(trace_id: str, folder: Path) -> ModelGraph:
    """Return the canonical graph of a trace.

    Args:
        trace_id: as in the timings.
        folder: of the KernelBench tables.

    Raises:
        KeyError: if there is no such trace.
    """
    return build(raw_graph_of(problems(folder)[trace_id]))


@lru_cache(maxsize=2)
def problems(folder: Path) -> dict[str, Any]:
    """Return all traces by their id."""
    text = (folder / "problems.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def raw_graph_of(trace: Mapping[str, Any]) -> RawGraph:
    """Return a trace as a raw graph of "aten" operators, its sizes fixed.

    Batch norms in training mode come out as batch norms: their second pass over the data is not
    stated.
    """
    return _Reader(trace).graph()


class _Reader:
    def __init__(self, trace: Mapping[str, Any]) -> None:
        self.trace = trace
        self.values: list[RawValue] = []
        self.operators: list[RawOperator] = []
        self.place: dict[str, tuple[int, ...]] = {}
        self.inputs = [spec for spec in trace["model_inputs"] if "shape" in spec]
        for i, spec in enumerate(trace["model_inputs"]):
            if "shape" not in spec:
                continue  # a plain number
            self._new(f"input:{i}", _shape(spec["shape"]), spec["dtype"], kind="input")
        for kind in ("parameters", "buffers"):
            for name, shape in trace[kind].items():
                prefix = "param" if kind == "parameters" else "buffer"
                self._new(f"{prefix}:{name}", _shape(shape), "float32", kind="parameter")

    def graph(self) -> RawGraph:
        for node in self.trace["nodes"]:
            self._node(node)
        n_inputs = len(self.inputs)
        outputs = tuple(p for name in self.trace["outputs"] for p in self.place.get(name, ()))
        batch = self.values[0].shape[0] if n_inputs and self.values[0].shape else 1
        return RawGraph(
            values=tuple(self.values),
            operators=tuple(self.operators),
            inputs=tuple(range(n_inputs)),
            outputs=outputs,
            batch=batch,
            batch_is_symbolic=False,
        )

    def _node(self, node: Mapping[str, Any]) -> None:
        name = node["op"].removeprefix("aten.").split(".")[0]
        inputs = [self._read(source, node, i) for i, source in enumerate(node["inputs"])]
        if name in PASSED_THROUGH:
            position = int(node.get("attrs", {}).get("arg1", 0)) if name == "getitem" else 0
            self.place[node["name"]] = inputs[0][position : position + 1] or inputs[0]
            return None
        if node.get("dtype") == "int64" and name == "add_":
            return None  # the counter of a batch norm
        if name == "linear":
            return self._linear(node, inputs)
        if name == "numpy_T":
            self.place[node["name"]] = self._transposed(inputs[0])
            return None
        shapes = node["output_shape"]
        if not shapes or not isinstance(shapes[0], list):
            shapes = [shapes]
        self.place[node["name"]] = ()
        for shape in shapes:
            self._new(node["name"], _shape(shape), node.get("dtype", "float32"))
        self.operators.append(
            RawOperator(
                "aten." + name,
                tuple(p for positions in inputs for p in positions),
                self.place[node["name"]],
                _attributes(node.get("attrs", {})),
            )
        )

    def _linear(self, node: Mapping[str, Any], inputs: list[tuple[int, ...]]) -> None:
        """Write a linear layer as PyTorch's importer does: transpose, matmul, add."""
        source, weight, *bias = inputs
        steps = [("matmul", (*source, *self._transposed(weight)))]
        steps += [("add", bias[0])] if bias else []
        result: tuple[int, ...] = ()
        for name, operands in steps:
            operands = (*result, *operands)
            result = (self._value(_shape(node["output_shape"])),)
            self.operators.append(RawOperator(name, operands, result))
        self.place[node["name"]] = result

    def _transposed(self, matrix: tuple[int, ...]) -> tuple[int, ...]:
        result = (self._value(self.values[matrix[0]].shape[::-1]),)
        self.operators.append(RawOperator("permute_dims", matrix, result, {"axes": (1, 0)}))
        return result

    def _value(self, shape: tuple[int, ...]) -> int:
        self.values.append(RawValue(shape, "float32", "operator"))
        return len(self.values) - 1

    def _read(self, source: str, node: Mapping[str, Any], i: int) -> tuple[int, ...]:
        if source not in self.place:
            self._new(source, _shape(node["input_shapes"][i] or []), "float32", kind="constant")
        return self.place[source]

    def _new(self, name: str, shape: tuple[int, ...], dtype: str, kind: Any = "operator") -> None:
        self.values.append(RawValue(shape, dtype, kind, name if kind != "operator" else ""))
        self.place[name] = (*self.place.get(name, ()), len(self.values) - 1)


def _shape(sizes: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)


def _attributes(attributes: Mapping[str, Any]) -> dict[str, Attribute]:
    result: dict[str, Attribute] = {}
    for name, value in attributes.items():
        if isinstance(value, bool):
            result[name] = int(value)
        elif isinstance(value, int | float | str):
            result[name] = value
        elif isinstance(value, list) and all(isinstance(v, int | float) for v in value):
            result[name] = tuple(value)
    return result
