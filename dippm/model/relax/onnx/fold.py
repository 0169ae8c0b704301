"""Constant folding of ONNX shape arithmetic, with NumPy.

Exporters write sizes as small programs (Shape → Gather → Concat → Reshape). Once the inputs have
static shapes those programs are constants. Only operators that occur in them are implemented here;
no code from the file runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Evaluate = Callable[[Sequence[Array | None], Mapping[str, Any], int], Any]

MAX_ELEMENTS = 1 << 18
"""Maximum elements of a folded result; larger ones remain operators."""

NUMPY_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
}  # fmt: skip


def evaluate(
    operator: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], opset: int
) -> list[Array] | None:
    """Return the results of an operator on known inputs; None if they remain unknown.

    Args:
        operator: ONNX name of the operator.
        inputs: values in argument order, None for an absent optional one.
        attributes: attributes as Python values.
        opset: version of the default domain.
    """
    function = _TABLE.get(operator)
    if function is None:
        return None
    try:
        if not _result_size(operator, inputs, attributes) <= MAX_ELEMENTS:
            return None
        with np.errstate(all="ignore"):
            result = function(inputs, attributes, opset)
    except (ArithmeticError, AssertionError, LookupError, MemoryError, TypeError, ValueError):
        return None
    results = result if isinstance(result, list) else [result]
    if any(r is None for r in results):
        return None
    return [np.asarray(r) for r in results]


def _result_size(
    operator: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]
) -> float:
    """Return the maximum number of elements of a result, without computing it."""
    known = [i for i in inputs if i is not None]
    if operator == "Range" and len(known) == 3:
        start, limit, delta = (float(k.reshape(-1)[0]) for k in known)
        return abs((limit - start) / delta) if delta else float("inf")
    if operator in ("Expand", "ConstantOfShape", "Tile") and known:
        growth = float(np.prod(known[-1].astype(np.float64)))
        return growth * (known[0].size if operator != "ConstantOfShape" else 1)
    if operator == "Gather" and len(known) == 2 and known[0].ndim:
        row = known[0].size / max(known[0].shape[int(attributes.get("axis", 0))], 1)
        return float(row * known[1].size)
    if operator == "OneHot" and len(known) == 3:
        return known[0].size * float(known[1].reshape(-1)[0])
    if operator in _BROADCASTING:
        try:
            return float(np.prod(np.broadcast_shapes(*(k.shape for k in known)), dtype=np.float64))
        except ValueError:
            return float("inf")
    return float(sum(k.size for k in known))


_BROADCASTING = frozenset(
    """
    Add Sub Mul Div Mod Pow Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Where Min
    Max Sum
    """.split()
)


def _elementwise(function: Callable[..., Any]) -> Evaluate:
    def run(inputs: Sequence[Array | None], _: Mapping[str, Any], __: int) -> Any:
        first = inputs[0]
        assert first is not None
        result = np.asarray(function(*inputs))
        return result.astype(first.dtype) if result.dtype.kind == "f" else result

    return run


def _divide(inputs: Sequence[Array | None], _: Mapping[str, Any], __: int) -> Any:
    a, b = inputs
    assert a is not None
    assert b is not None
    if a.dtype.kind == "f":
        return np.divide(a, b).astype(a.dtype)
    if not np.all(b):
        return None
    quotient = np.floor_divide(np.abs(a), np.abs(b)) * np.sign(a) * np.sign(b)
    return quotient.astype(a.dtype)


def _mod(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    a, b = inputs
    assert a is not None
    assert b is not None
    if a.dtype.kind != "f" and not np.all(b):
        return None
    return np.fmod(a, b) if attributes.get("fmod") else np.mod(a, b)


def _power(inputs: Sequence[Array | None], _: Mapping[str, Any], __: int) -> Any:
    a, b = inputs
    assert a is not None
    assert b is not None
    return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)


def _cast(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    name = NUMPY_TYPES.get(int(attributes["to"]))
    (value,) = inputs
    return value.astype(name) if name and value is not None else None


def _cast_like(inputs: Sequence[Array | None], _: Mapping[str, Any], __: int) -> Any:
    value, like = inputs
    return value.astype(like.dtype) if value is not None and like is not None else None


def _gather(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    data, indices = inputs
    assert data is not None
    assert indices is not None
    return np.take(data, indices.astype(np.int64), axis=int(attributes.get("axis", 0)))


def _concat(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    return np.concatenate([i for i in inputs if i is not None], axis=int(attributes["axis"]))


def _second(
    inputs: Sequence[Array | None], attributes: Mapping[str, Any], name: str
) -> tuple[int, ...] | None:
    """Return integers that newer opsets pass as second input and older ones as attribute."""
    if len(inputs) > 1 and inputs[1] is not None:
        return tuple(int(v) for v in inputs[1].reshape(-1))
    given = attributes.get(name)
    return None if given is None else tuple(int(v) for v in given)


def _unsqueeze(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    axes = _second(inputs, attributes, "axes")
    assert inputs[0] is not None
    assert axes is not None
    return np.expand_dims(inputs[0], axes)


def _squeeze(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    assert inputs[0] is not None
    return np.squeeze(inputs[0], _second(inputs, attributes, "axes"))


def _reshape(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    data = inputs[0]
    target = _second(inputs, attributes, "shape")
    assert data is not None
    assert target is not None
    if not attributes.get("allowzero"):
        target = tuple(data.shape[i] if t == 0 else t for i, t in enumerate(target))
    return data.reshape(target)


def _slice(inputs: Sequence[Array | None], attributes: Mapping[str, Any], opset: int) -> Any:
    data = inputs[0]
    assert data is not None
    if opset < 10:
        starts, ends = attributes["starts"], attributes["ends"]
        axes, steps = attributes.get("axes"), None
    else:
        parts = [None if i is None else i.reshape(-1).tolist() for i in inputs[1:]]
        starts, ends, axes, steps = [*parts, None, None][:4]
    axes = list(axes) if axes is not None else list(range(len(starts)))
    steps = list(steps) if steps is not None else [1] * len(starts)
    index: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = data.shape[axis]
        bound = None if step < 0 and end < -size else int(end)
        index[axis] = slice(int(start), bound, int(step))
    return data[tuple(index)]


def _split(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    data, axis = inputs[0], int(attributes.get("axis", 0))
    sizes = _second(inputs, attributes, "split")
    assert data is not None
    if sizes is None:
        parts = int(attributes.get("num_outputs", 0))
        if not parts:
            return None
        whole = data.shape[axis]
        step = -(-whole // parts)
        sizes = tuple(max(min(step, whole - i * step), 0) for i in range(parts))
    return list(np.split(data, np.cumsum(sizes)[:-1].tolist(), axis=axis))


def _constant_of_shape(
    inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int
) -> Any:
    assert inputs[0] is not None
    value = attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return np.full(tuple(int(s) for s in inputs[0]), fill.reshape(-1)[0], fill.dtype)


def _range(inputs: Sequence[Array | None], _: Mapping[str, Any], __: int) -> Any:
    start, limit, delta = (i.reshape(-1)[0] for i in inputs if i is not None)
    return np.arange(start, limit, delta, dtype=start.dtype)


def _expand(inputs: Sequence[Array | None], _: Mapping[str, Any], __: int) -> Any:
    data, shape = inputs
    assert data is not None
    assert shape is not None
    target = np.broadcast_shapes(data.shape, tuple(int(s) for s in shape))
    return np.broadcast_to(data, target).copy()


def _reduce(function: Callable[..., Any]) -> Evaluate:
    def run(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
        axes = _second(inputs, attributes, "axes")
        assert inputs[0] is not None
        if axes is None and attributes.get("noop_with_empty_axes"):
            return inputs[0]
        keep = bool(attributes.get("keepdims", 1))
        return np.asarray(function(inputs[0], axis=axes, keepdims=keep), inputs[0].dtype)

    return run


def _transpose(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    assert inputs[0] is not None
    return np.transpose(inputs[0], attributes.get("perm"))


def _non_zero(inputs: Sequence[Array | None], _: Mapping[str, Any], __: int) -> Any:
    assert inputs[0] is not None
    return np.asarray(np.nonzero(np.atleast_1d(inputs[0])), np.int64)


def _variadic(function: Callable[..., Any]) -> Evaluate:
    def run(inputs: Sequence[Array | None], _: Mapping[str, Any], __: int) -> Any:
        result = inputs[0]
        for other in inputs[1:]:
            result = function(result, other)
        return result

    return run


def _trilu(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    assert inputs[0] is not None
    k = int(inputs[1].reshape(-1)[0]) if len(inputs) > 1 and inputs[1] is not None else 0
    return (np.triu if attributes.get("upper", 1) else np.tril)(inputs[0], k)


def _cumsum(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    data, axis = inputs
    if attributes.get("exclusive") or attributes.get("reverse"):
        return None
    assert data is not None
    assert axis is not None
    return np.cumsum(data, axis=int(axis.reshape(-1)[0]), dtype=data.dtype)


def _where(inputs: Sequence[Array | None], _: Mapping[str, Any], __: int) -> Any:
    condition, yes, no = inputs
    assert condition is not None
    assert yes is not None
    assert no is not None
    return np.where(condition, yes, no)


def _clip(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    data, low, high = (*inputs, None, None)[:3]
    assert data is not None
    low = attributes.get("min") if low is None else low
    high = attributes.get("max") if high is None else high
    return data if low is None and high is None else np.clip(data, low, high).astype(data.dtype)


def _one_hot(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    indices, depth, values = inputs
    assert indices is not None
    assert depth is not None
    assert values is not None
    size = int(depth.reshape(-1)[0])
    places = np.where(indices < 0, indices + size, indices)[..., None] == np.arange(size)
    axis = int(attributes.get("axis", -1)) % places.ndim
    return np.moveaxis(np.where(places, values[1], values[0]).astype(values.dtype), -1, axis)


def _gather_elements(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    data, indices = inputs
    assert data is not None
    assert indices is not None
    axis = int(attributes.get("axis", 0)) % data.ndim
    rows = tuple(slice(0, size) for size in indices.shape)
    inside = data[tuple(slice(None) if i == axis else r for i, r in enumerate(rows))]
    return np.take_along_axis(inside, indices % data.shape[axis], axis)


def _scatter_nd(inputs: Sequence[Array | None], attributes: Mapping[str, Any], _: int) -> Any:
    data, indices, updates = inputs
    if attributes.get("reduction", "none") != "none":
        return None
    assert data is not None
    assert indices is not None
    assert updates is not None
    result = data.copy()
    result[tuple(np.moveaxis(indices, -1, 0))] = updates
    return result


_TABLE: dict[str, Evaluate] = {
    "Add": _elementwise(np.add), "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply), "Div": _divide, "Mod": _mod, "Pow": _power,
    "Neg": _elementwise(np.negative), "Abs": _elementwise(np.abs),
    "Floor": _elementwise(np.floor), "Ceil": _elementwise(np.ceil),
    "Round": _elementwise(np.round), "Sqrt": _elementwise(np.sqrt),
    "Reciprocal": _elementwise(np.reciprocal), "Sign": _elementwise(np.sign),
    "Exp": _elementwise(np.exp), "Log": _elementwise(np.log),
    "Sin": _elementwise(np.sin), "Cos": _elementwise(np.cos),
    "Equal": _elementwise(np.equal), "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal), "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal), "And": _elementwise(np.logical_and),
    "Or": _elementwise(np.logical_or), "Xor": _elementwise(np.logical_xor),
    "Not": _elementwise(np.logical_not), "IsNaN": _elementwise(np.isnan),
    "Where": _where, "Clip": _clip, "OneHot": _one_hot,
    "Relu": _elementwise(lambda x: np.maximum(x, 0)),
    "Min": _variadic(np.minimum), "Max": _variadic(np.maximum), "Sum": _variadic(np.add),
    "Identity": lambda i, _, __: i[0],
    "Cast": _cast, "CastLike": _cast_like, "Gather": _gather, "Concat": _concat,
    "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Reshape": _reshape, "Slice": _slice,
    "Split": _split, "ConstantOfShape": _constant_of_shape, "Range": _range, "Expand": _expand,
    "Transpose": _transpose, "NonZero": _non_zero, "Trilu": _trilu, "CumSum": _cumsum,
    "GatherElements": _gather_elements, "ScatterND": _scatter_nd,
    "ReduceProd": _reduce(np.prod), "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max), "ReduceMin": _reduce(np.min), "ReduceMean": _reduce(np.mean),
    "Tile": lambda i, _, __: np.tile(i[0], tuple(int(r) for r in i[1])),  # type: ignore[arg-type, union-attr]
}  # fmt: skip
