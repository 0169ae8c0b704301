"""Relax function → `RawGraph`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import relax

from dippm.base.progress import counted
from dippm.model.relax.carried import (
    COMPLEX,
    called_of,
    in_place_of,
    lifetimes_of,
    paths_of,
    read_symbol,
)
from dippm.model.relax.raw_graph import (
    HELD_UNTIL,
    IN_PLACE,
    Attribute,
    Lifetime,
    RawGraph,
    RawOperator,
    RawValue,
    ValueKind,
    last_operators,
    merge_lifetimes,
)

_COMPLEX = {vector: name for name, vector in COMPLEX.items()}


def walk(module: tvm.IRModule, batch: int, batch_is_symbolic: bool = True) -> RawGraph:
    """Return the operators of the function "main", in the order of its bindings.

    Args:
        module: a module whose first `num_input` arguments are user inputs, the rest parameters.
        batch: batch size of the conversion.
        batch_is_symbolic: whether `batch` is a marker; see `RawGraph`.

    Raises:
        ValueError: if a value has no static shape.
    """
    return _Walk(module["main"], batch, batch_is_symbolic).graph()


class _Walk:
    def __init__(self, function: relax.Function, batch: int, batch_is_symbolic: bool) -> None:
        self.batch, self.batch_is_symbolic = batch, batch_is_symbolic
        self.values: list[RawValue] = []
        self.operators: list[RawOperator] = []
        self.position: dict[Any, tuple[int, ...]] = {}
        self.paths = paths_of(function)
        self.in_place, self.called = in_place_of(function), called_of(function)
        self.held, self.lifetimes = lifetimes_of(function), dict[int, Lifetime]()
        self.maker: dict[int, int] = {}
        n_inputs = int(function.attrs["num_input"]) if function.attrs else len(function.params)
        for i, parameter in enumerate(function.params):
            kind: ValueKind = "input" if i < n_inputs else "parameter"
            self.position[parameter] = self._new(parameter.ty, kind, parameter.name)
        self.inputs = tuple(p for v in function.params[:n_inputs] for p in self.position[v])
        for block in function.body.blocks:
            for binding in counted(block.bindings, len(block.bindings), "reading operator"):
                self._bind(binding)
        self.outputs = self._read(function.body.body)

    def graph(self) -> RawGraph:
        held = [self.lifetimes.get(i) for i in range(len(self.operators))]
        for operator, until in zip(self.operators, last_operators(held), strict=True):
            if until is not None:
                operator.attributes[HELD_UNTIL] = until
        return RawGraph(
            tuple(self.values),
            tuple(self.operators),
            self.inputs,
            self.outputs,
            self.batch,
            self.batch_is_symbolic,
            called=self.called,
        )

    def _new(
        self, ty: Any, kind: ValueKind, name: str = "", scalar: float | None = None
    ) -> tuple[int, ...]:
        """Append one value for each tensor in a type; return their positions."""
        if isinstance(ty, tvm.ir.TupleType):
            return tuple(p for field in ty.fields for p in self._new(field, kind, name))
        if not isinstance(ty, relax.TensorType):
            return ()
        dtype = _COMPLEX.get(str(ty.dtype), str(ty.dtype))
        self.values.append(RawValue(_static_shape(ty, name), dtype, kind, name, scalar))
        return (len(self.values) - 1,)

    def _read(self, expression: Any) -> tuple[int, ...]:
        """Return the positions of the tensors in an argument."""
        if isinstance(expression, relax.Tuple):
            return tuple(p for field in expression.fields for p in self._read(field))
        if isinstance(expression, relax.TupleGetItem):
            return self._item(expression)
        if expression in self.position:
            return self.position[expression]
        value = getattr(expression, "value", None)
        if value is not None and hasattr(value, "numpy"):
            data = value.numpy()
            scalar = float(data.reshape(-1)[0]) if data.size == 1 else None
            self.position[expression] = self._new(expression.ty, "constant", "", scalar)
            return self.position[expression]
        return ()

    def _item(self, expression: relax.TupleGetItem) -> tuple[int, ...]:
        positions = self._read(expression.tuple_value)
        fields = list(expression.tuple_value.ty.fields)
        sizes = [_count(field) for field in fields]
        start = sum(sizes[: expression.index])
        return positions[start : start + sizes[expression.index]]

    def _bind(self, binding: Any) -> None:
        value = getattr(binding, "value", None)
        if isinstance(binding, relax.MatchCast):
            self.position[binding.var] = self._read(binding.value)
        elif isinstance(value, tvm.ir.Call):
            self._call(binding.var, value)
        else:
            self.position[binding.var] = self._read(value)
        self._hold(binding.var)

    def _hold(self, var: Any) -> None:
        """Record the lifetime of a variable, or of one of several results of an operator."""
        held = self.held.get(var.name)
        if held is None:
            return
        for operator in {self.maker[p] for p in self.position[var] if p in self.maker}:
            self.lifetimes[operator] = merge_lifetimes(self.lifetimes.get(operator), held)

    def _call(self, var: Any, call: tvm.ir.Call) -> None:
        name, attributes, arguments = _describe(call)
        inputs: list[int] = []
        for i, argument in enumerate(arguments):
            positions = self._read(argument)
            inputs.extend(positions)
            plain = _plain(argument)
            if not positions and plain is not None:
                attributes[f"arg{i}"] = plain
        self.position[var] = outputs = self._new(var.ty, "operator")
        self.maker.update(dict.fromkeys(outputs, len(self.operators)))
        if var.name in self.in_place:
            attributes[IN_PLACE] = 1
        path = self.paths.get(var.name, "")
        self.operators.append(RawOperator(name, tuple(inputs), outputs, attributes, path))


def _describe(call: tvm.ir.Call) -> tuple[str, dict[str, Attribute], Iterable[Any]]:
    operator = call.op
    if isinstance(operator, relax.ExternFunc):
        return str(operator.global_symbol), {}, call.args
    if not isinstance(operator, tvm.ir.Op):
        return "call", {}, call.args
    name = str(operator.name).removeprefix("relax.")
    if name in ("call_dps_packed", "call_tir", "call_pure_packed"):
        callee = call.args[0]
        symbol = str(getattr(callee, "global_symbol", getattr(callee, "name_hint", "")))
        carried = read_symbol(symbol)
        arguments = call.args[1:]
        if carried:
            return carried[0], dict(carried[1]), arguments
        return "call_tir." + symbol.rstrip("0123456789"), {}, arguments
    return name, _attributes(call.attrs), call.args


def _attributes(attributes: Any) -> dict[str, Attribute]:
    if attributes is None:
        return {}
    names = [field.name for field in type(attributes).__tvm_ffi_type_info__.fields]
    pairs = ((name, _plain(getattr(attributes, name))) for name in names)
    return {k: v for k, v in pairs if v is not None}


def _plain(value: Any) -> Attribute | None:
    """Return an attribute as a number, text or tuple of numbers; None for other types."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, tvm.tirx.IntImm):
        return int(value.value)
    if isinstance(value, tvm.tirx.FloatImm):
        return float(value.value)
    if isinstance(value, relax.ShapeExpr):
        return _plain(value.values)
    inner = getattr(value, "value", None)
    if inner is not None and isinstance(inner, int | float | tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return _plain(inner)
    if isinstance(value, relax.Tuple):
        return _plain(value.fields)
    if not isinstance(value, Sequence) or isinstance(value, tvm.ir.Expr):
        return None
    items = [_plain(item) for item in value]
    numbers = tuple(item for item in items if isinstance(item, int | float))
    return numbers if len(numbers) == len(items) else None


def _static_shape(ty: relax.TensorType, name: str) -> tuple[int, ...]:
    shape = getattr(ty.shape, "values", None)
    if shape is None or not all(isinstance(size, tvm.tirx.IntImm) for size in shape):
        raise ValueError(f"no static shape for {name or 'an operator result'}: {ty}")
    return tuple(int(size.value) for size in shape)


def _count(ty: Any) -> int:
    if isinstance(ty, tvm.ir.TupleType):
        return sum(_count(field) for field in ty.fields)
    return int(isinstance(ty, relax.TensorType))
