"""Normalisations that Keras spells as several operations → one Relax operator.

Two spellings cover Keras and `tf.nn`, with optional scale and offset, and casts anywhere::

    x * (rsqrt(variance + e) * scale) + (offset - mean * ...)      batch, layer, group norm
    x * rsqrt(mean(x * x) + e) * scale                             RMS norm

A mean computed from weights alone is a batch norm; a mean over `x` is a layer or group norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tvm import relax

from dippm.model.relax.carried import opaque_call
from dippm.model.relax.raw_graph import Attribute
from dippm.model.relax.tensorflow.call import Match, Results, TensorFlowCall, dtype_of, shape_of

op = relax.op
IsActivation = Callable[[tf.Tensor], bool]
ADDS = ("Add", "AddV2")


@dataclass(frozen=True, slots=True)
class _Scale:
    """`rsqrt(variance + epsilon) * scale`."""

    variance: tf.Tensor
    epsilon: float
    scale: tf.Tensor | None


def match(operation: tf.Operation, is_activation: IsActivation) -> Match | None:
    """Return the normalisation that ends in this operation, else None."""
    if operation.type in ADDS:
        return _match_shifted(operation, is_activation)
    if operation.type == "Sub":
        return _match_unshifted(operation, is_activation)
    if operation.type == "Mul":
        return _match_rms(operation, is_activation)
    return None


def _match_shifted(operation: tf.Operation, is_activation: IsActivation) -> Match | None:
    for product, shift in _both_ways(operation):
        found = _match_scaled(product)
        if found is None:
            continue
        x, scale = found
        mean, offset = _shift(shift)
        if mean is not None and is_activation(x):
            return _norm(x, mean, scale, offset, is_activation)
    return None


def _match_unshifted(operation: tf.Operation, is_activation: IsActivation) -> Match | None:
    """`x * s - mean * s`, a norm without offset."""
    found = _match_scaled(operation.inputs[0])
    other = _match_scaled(operation.inputs[1])
    if found is None or other is None or not is_activation(found[0]):
        return None
    if found[1].variance is not other[1].variance:
        return None
    return _norm(found[0], other[0], found[1], None, is_activation)


def _norm(
    x: tf.Tensor,
    mean: tf.Tensor,
    scale: _Scale,
    offset: tf.Tensor | None,
    is_activation: IsActivation,
) -> Match | None:
    if not is_activation(mean) and not is_activation(scale.variance):
        return _batch_norm(x, mean, scale, offset)
    reduction = _peel(mean, "Squeeze", "Reshape").op
    if reduction.type != "Mean" or _peel(reduction.inputs[0]) is not _peel(x):
        return None
    axes = tf.get_static_value(reduction.inputs[1])
    if axes is None or x.shape.rank is None:
        return None
    positions = sorted(int(a) % x.shape.rank for a in np.atleast_1d(axes))
    return _layer_norm(x, positions, scale, offset)


def _batch_norm(
    x: tf.Tensor, mean: tf.Tensor, scale: _Scale, offset: tf.Tensor | None
) -> Match | None:
    sources = [
        _peel(t, "Reshape") for t in (scale.scale, offset, mean, scale.variance) if t is not None
    ]
    if any(t.shape.rank != 1 for t in sources):
        return None
    channels = sources[-1].shape[0]
    axis = _axis_of(x, mean)

    def build(call: TensorFlowCall) -> Results:
        dtype = dtype_of(call.expression(x))
        values = {"gamma": scale.scale, "beta": offset, "mean": mean, "variance": scale.variance}
        arguments = [
            _vector(call, t, channels, dtype, 0.0 if name == "beta" else 1.0)
            for name, t in values.items()
        ]
        result = op.nn.batch_norm(
            call.expression(x), *arguments, axis=axis, epsilon=scale.epsilon, training=False
        )
        return relax.TupleGetItem(call.emit(result), 0)

    return Match((x, *sources), build)


def _layer_norm(x: tf.Tensor, axes: list[int], scale: _Scale, offset: tf.Tensor | None) -> Match:
    weights = [_peel(t, "Reshape") for t in (scale.scale, offset) if t is not None]
    trailing = axes == list(range(x.shape.rank - len(axes), x.shape.rank))

    def build(call: TensorFlowCall) -> Results:
        value = call.expression(x)
        shape, dtype = shape_of(value), dtype_of(value)
        sizes = tuple(shape[a] for a in axes)
        fitting = all(shape_of(call.expression(t)) == sizes for t in weights)
        if not (trailing and fitting):
            marks: dict[str, Attribute] = {"axes": tuple(axes), "epsilon": scale.epsilon}
            inputs = [value, *(call.expression(t) for t in weights)]
            return opaque_call("tf.GroupNormalization", inputs, [(shape, dtype)], marks)
        gamma, beta = (
            call.expression(_peel(t, "Reshape"))
            if t is not None
            else relax.const(np.full(sizes, absent), dtype)
            for t, absent in ((scale.scale, 1.0), (offset, 0.0))
        )
        return op.nn.layer_norm(value, gamma, beta, axes=axes, epsilon=scale.epsilon)

    return Match((x, *weights), build)


def _match_rms(operation: tf.Operation, is_activation: IsActivation) -> Match | None:
    """`(x * rsqrt(mean(square(x)) + e)) * scale`; the required scale marks the end."""
    for product, scale in _both_ways(operation):
        if is_activation(scale) or product.op.type != "Mul":
            continue
        found = _match_scaled(product)
        if found is None or found[1].scale is not None:
            continue
        x, root = found
        reduction = _peel(root.variance).op
        if reduction.type != "Mean" or reduction.inputs[0].op.type != "Square":
            continue
        if _peel(reduction.inputs[0].op.inputs[0]) is not _peel(x):
            continue
        axes = tf.get_static_value(reduction.inputs[1])
        if axes is None:
            continue
        return _rms_norm(x, scale, [int(a) for a in np.atleast_1d(axes)], root.epsilon)
    return None


def _rms_norm(x: tf.Tensor, scale: tf.Tensor, axes: list[int], epsilon: float) -> Match:
    def build(call: TensorFlowCall) -> Results:
        return op.nn.rms_norm(call.expression(x), call.expression(scale), axes, epsilon)

    return Match((x, scale), build)


def _match_scaled(tensor: tf.Tensor) -> tuple[tf.Tensor, _Scale] | None:
    """Match `x * (rsqrt(variance + epsilon) * scale)`."""
    tensor = _peel(tensor)
    if tensor.op.type != "Mul":
        return None
    for x, factor in _both_ways(tensor.op):
        scale = _scale(factor)
        if scale is not None:
            return x, scale
    return None


def _scale(tensor: tf.Tensor) -> _Scale | None:
    tensor = _peel(tensor)
    if tensor.op.type == "Mul":
        for root, scale in _both_ways(tensor.op):
            found = _scale(root)
            if found is not None and found.scale is None:
                return _Scale(found.variance, found.epsilon, scale)
        return None
    if tensor.op.type != "Rsqrt":
        return None
    total = _peel(tensor.op.inputs[0])
    if total.op.type in ADDS:
        for variance, epsilon in _both_ways(total.op):
            value = tf.get_static_value(_peel(epsilon))
            if value is not None and np.size(value) == 1:
                return _Scale(variance, float(np.reshape(value, ())), None)
    return None


def _shift(tensor: tf.Tensor) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    """Match `offset - mean * s`, `-mean * s + offset` or `-mean * s` as (mean, offset)."""
    tensor = _peel(tensor)
    if tensor.op.type == "Sub":
        offset, product = tensor.op.inputs
        found = _match_scaled(product)
        return (found[0], offset) if found else (None, None)
    if tensor.op.type in ADDS:
        for product, offset in _both_ways(tensor.op):
            mean, more = _shift(product)
            if mean is not None and more is None:
                return mean, offset
        return None, None
    if tensor.op.type == "Neg":
        found = _match_scaled(tensor.op.inputs[0])
        return (found[0], None) if found else (None, None)
    found = _match_scaled(tensor)
    if found and _peel(found[0]).op.type == "Neg":
        return _peel(found[0]).op.inputs[0], None
    return None, None


def _both_ways(operation: tf.Operation) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    first, second = operation.inputs
    yield first, second
    yield second, first


def _peel(tensor: tf.Tensor, *also: str) -> tf.Tensor:
    """Return a tensor before casts, and before shape operations that are named in `also`."""
    while tensor.op.type in ("Cast", *also):
        tensor = tensor.op.inputs[0]
    return tensor


def _axis_of(x: tf.Tensor, mean: tf.Tensor) -> int:
    """Return the channel axis, where the size of a broadcast mean is not 1."""
    rank = x.shape.rank
    if mean.shape.rank == rank:
        wide = [i for i, size in enumerate(mean.shape.as_list()) if size != 1]
        return int(wide[0]) if wide else rank - 1
    return int(rank - 1)


def _vector(
    call: TensorFlowCall, tensor: tf.Tensor | None, channels: int, dtype: str, absent: float
) -> relax.Expr:
    if tensor is None:
        return relax.const(np.full((channels,), absent), dtype)
    value = call.expression(_peel(tensor, "Reshape"))
    return value if dtype_of(value) == dtype else call.emit(op.astype(value, dtype))
