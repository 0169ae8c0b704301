"""ONNX graph with static shapes → Relax module.

Each operator becomes its Relax equivalent. Without one, or if TVM would decompose it (LSTM, Clip,
Resize, LayerNormalization, ...), it becomes one opaque call with ONNX's own result shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from dippm.base.progress import counted
from dippm.model.relax.carried import PathBuilder, opaque_call, with_paths
from dippm.model.relax.onnx.converters import CONVERTERS, Builder, dtype_of
from dippm.model.relax.onnx.fold import Array
from dippm.model.relax.onnx.tracing import Tensor, Trace, TracedStep
from dippm.model.relax.raw_graph import Attribute, RawGraph
from dippm.model.relax.walk import walk

_SETTINGS = {
    "Clip": ("min", "max"),
    "Resize": ("roi", "scales", "sizes"),
    "Upsample": ("scales",),
    "Pad": ("pads", "constant_value"),
    "OneHot": ("depth", "values"),
}
_MAX_SETTING = 64
_BY_POSITION = frozenset(
    """
    QLinearConv QLinearMatMul QGemm QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu
    QLinearSoftmax ConvInteger MatMulInteger
    """.split()
)
"""Operators with positional arguments: scales and zero points are kept."""


def import_trace(traced: Trace, batch: int, *, batch_is_symbolic: bool) -> RawGraph:
    """Return the raw graph of a traced ONNX graph, by way of Relax.

    Args:
        traced: result of `trace.trace`.
        batch: batch size of its shapes.
        batch_is_symbolic: whether the batch is a marker.

    Raises:
        ConversionError: if a tensor has a type that no GPU supports.
    """
    return walk(_Importer().run(traced), batch, batch_is_symbolic)


class _Importer:
    def __init__(self) -> None:
        self.block_builder = PathBuilder()
        self.builder = Builder(self.block_builder)
        self.values: dict[int, Any] = {}

    def run(self, traced: Trace) -> tvm.IRModule:
        variables = [self._variable(t) for t in traced.inputs]
        parameters = [self._variable(t) for t in _parameters(traced)]
        with self.block_builder.function("main", params=variables + parameters):
            with self.block_builder.dataflow():
                stage = "translating operator"
                for step in counted(traced.steps, len(traced.steps), stage):
                    self.block_builder.path = step.path
                    self._step(step)
                self.block_builder.path = ""
                results = [self._argument(t) for t in traced.outputs]
                result = self.block_builder.emit_output(
                    results[0] if len(results) == 1 else relax.Tuple(results)
                )
            self.block_builder.emit_func_output(result)
        module = self.block_builder.get()
        module["main"] = module["main"].with_attrs({"num_input": len(variables)})
        return with_paths(module, self.block_builder.paths)

    def _variable(self, tensor: Tensor) -> relax.Var:
        variable = relax.Var(tensor.name, relax.TensorType(tensor.shape, dtype_of(tensor)))
        self.values[id(tensor)] = variable
        return variable

    def _argument(self, tensor: Tensor) -> Any:
        if id(tensor) not in self.values:
            self.values[id(tensor)] = self._constant(tensor)
        return self.values[id(tensor)]

    def _constant(self, tensor: Tensor) -> Any:
        """Return a constant; a repeated number becomes a broadcast of that number."""
        array, dtype = np.asarray(tensor.data), dtype_of(tensor)
        is_computed = tensor.producer is not None and array.size > 1
        if not is_computed or not bool((array == array.flat[0]).all()):
            return relax.const(_as(array, dtype), dtype)
        number = relax.const(_as(array.flat[0], dtype), dtype)
        return self.builder.emit(relax.op.broadcast_to(number, array.shape))

    def _step(self, step: TracedStep) -> None:
        arguments = [None if t is None else self._argument(t) for t in step.inputs]
        converter = CONVERTERS.get(step.operator)
        results = self._convert(step, arguments) if converter else None
        if results is None:
            results = self._carry(step, arguments)
        for tensor, result in zip(step.outputs, results, strict=False):
            if tensor is not None:
                self.values[id(tensor)] = result

    def _convert(self, step: TracedStep, arguments: list[Any]) -> list[Any] | None:
        """Return the results of the Relax equivalent; None if none exists or its types differ."""
        try:
            expression = CONVERTERS[step.operator](self.builder, step, arguments)
            if expression is None:
                return None
            result = self.builder.emit(expression)
        except Exception:
            return None
        if isinstance(result.ty, tvm.ir.TupleType):
            count = len(result.ty.fields)
            results = [self.builder.emit(relax.TupleGetItem(result, i)) for i in range(count)]
        else:
            results = [result]
        agreed = all(
            tensor is None or _agrees(tensor, found)
            for tensor, found in zip(step.outputs, results, strict=False)
        )
        return results if agreed and len(results) >= len(step.outputs) else None

    def _carry(self, step: TracedStep, arguments: list[Any]) -> list[Any]:
        settings = {i for i in range(len(step.inputs)) if _is_setting(step, i)}
        attributes = _attributes(step)
        kept = []
        for i, (tensor, argument) in enumerate(zip(step.inputs, arguments, strict=True)):
            if tensor is None and step.operator in _BY_POSITION and i < len(step.inputs) - 1:
                kept.append((step.input_names[i], relax.const(np.int8(0), "int8")))
            if tensor is None:
                continue
            name = step.input_names[i]
            if i in settings:
                attributes[name] = _setting(tensor)
            else:
                kept.append((name, argument))
        attributes["input_names"] = ",".join(name for name, _ in kept)
        present = [t for t in step.outputs if t is not None]
        call = opaque_call(
            f"onnx.{step.operator}",
            [argument for _, argument in kept],
            [(t.shape, dtype_of(t)) for t in present],
            attributes,
        )
        emitted = self.builder.emit(call)
        if len(present) == 1:
            found = iter([emitted])
        else:
            found = iter(
                [self.builder.emit(relax.TupleGetItem(emitted, i)) for i in range(len(present))]
            )
        return [None if t is None else next(found) for t in step.outputs]


def _as(array: Any, dtype: str) -> Array:
    """Return an array in a NumPy type; rare types without one keep their storage type."""
    known = "float32" if dtype.startswith(("bfloat", "float8", "float4")) else dtype
    return np.asarray(array).astype(known.replace("int4", "int8"), copy=False)


def _parameters(traced: Trace) -> list[Tensor]:
    """Return the used weights, in order of their first use."""
    inputs = {id(t) for t in traced.inputs}
    found: dict[int, Tensor] = {}
    read = [t for step in traced.steps for t in step.inputs if t is not None]
    for tensor in [*read, *traced.outputs]:
        is_leaf = tensor.producer is None and id(tensor) not in inputs
        if is_leaf and not tensor.is_constant:
            found.setdefault(id(tensor), tensor)
    return list(found.values())


def _agrees(tensor: Tensor, result: Any) -> bool:
    shape = getattr(result.ty, "shape", None)
    values = getattr(shape, "values", None)
    if values is None or str(result.ty.dtype) != dtype_of(tensor):
        return False
    return tuple(int(v) if isinstance(v, tvm.tirx.IntImm) else -1 for v in values) == tensor.shape


def _is_setting(step: TracedStep, position: int) -> bool:
    """Return whether an argument is a setting (sizes, axes) rather than data."""
    tensor = step.inputs[position]
    if tensor is None or tensor.data is None or tensor.data.size > _MAX_SETTING:
        return False
    if step.operator in _BY_POSITION:
        return False
    if step.input_names[position] in _SETTINGS.get(step.operator, ()):
        return True
    return position > 0 and tensor.data.dtype.kind in "iu" and tensor.is_constant


def _setting(tensor: Tensor) -> Attribute:
    assert tensor.data is not None
    values = tensor.data.reshape(-1).tolist()
    return values[0] if tensor.data.size == 1 else tuple(values)


def _attributes(step: TracedStep) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    for name, value in step.attributes.items():
        if isinstance(value, int | float | str):
            attributes[name] = value
        elif isinstance(value, list) and value:
            if all(isinstance(item, int | float) for item in value):
                attributes[name] = tuple(value)
            elif all(isinstance(item, str) for item in value):
                attributes[name] = ",".join(value)
    return attributes
