"""Static values of TensorFlow tensors: shape arithmetic, evaluated without a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

MAX_ELEMENTS = 1 << 16
Array = np.ndarray[Any, Any]

_FOLDED: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Neg": np.negative,
    "GatherV2": lambda x, index, axis: np.take(x, index, axis=int(axis)),
    "Transpose": np.transpose,
    "Reshape": np.reshape,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalNot": np.logical_not,
    "LogicalOr": np.logical_or,
    "Cast": lambda x: x,
    "Squeeze": np.squeeze,
    "Range": np.arange,
    "Pack": lambda *parts: np.stack(parts),
    "ConcatV2": lambda *parts: np.concatenate(parts[:-1], int(parts[-1])),
    "SelectV2": np.where,
    "ExpandDims": lambda x, axis: np.expand_dims(x, int(axis)),
}
_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "Prod": np.prod,
    "Sum": np.sum,
    "Max": np.max,
    "Min": np.min,
}


class Statics:
    """Evaluates tensors that do not depend on data, with a cache.

    Args:
        known: values of tensors that are given from outside, by name.
    """

    def __init__(self, known: Mapping[str, Array] | None = None) -> None:
        self.known: dict[str, Array | None] = dict(known or {})

    def value(self, tensor: tf.Tensor) -> Array | None:
        """Return a tensor's value, None if it is unknown or large."""
        if tensor.name not in self.known:
            self.known[tensor.name] = None
            elements = tensor.shape.num_elements()
            if tensor.dtype in (tf.resource, tf.variant):
                return None
            if elements is not None and elements <= MAX_ELEMENTS:
                self.known[tensor.name] = self._evaluate(tensor)
        return self.known[tensor.name]

    def _evaluate(self, tensor: tf.Tensor) -> Array | None:
        found = tf.get_static_value(tensor)
        if found is not None:
            return np.asarray(found)
        operation = tensor.op
        if operation.type == "Size":
            count = operation.inputs[0].shape.num_elements()
            return None if count is None else np.asarray(count)
        if operation.type == "StridedSlice" and tensor.dtype.is_integer:
            return self._strided_slice(operation)
        if operation.type == "LogicalAnd":
            return self._and([self.value(t) for t in operation.inputs])
        function = _FOLDED.get(operation.type) or self._reduction(operation)
        if function is None or not operation.inputs:
            return None
        arguments = [self.value(t) for t in operation.inputs]
        if any(argument is None for argument in arguments):
            return None
        result = np.asarray(function(*arguments))
        return result.astype(tensor.dtype.as_numpy_dtype)

    @staticmethod
    def _and(sides: list[Array | None]) -> Array | None:
        """Evaluate a logical and, for which one false side suffices."""
        if any(side is not None and side.size == 1 and not side for side in sides):
            return np.asarray(False)
        left, right = sides
        return None if left is None or right is None else np.logical_and(left, right)

    def _reduction(self, operation: tf.Operation) -> Callable[..., Array] | None:
        function = _REDUCTIONS.get(operation.type)
        if function is None:
            return None
        keep = operation.get_attr("keep_dims")
        return lambda x, axes: function(x, axis=tuple(np.atleast_1d(axes)), keepdims=keep)

    def _strided_slice(self, operation: tf.Operation) -> Array | None:
        x, begin, end, strides = (self.value(t) for t in operation.inputs)
        if x is None or begin is None or end is None or strides is None or x.ndim != 1:
            return None
        if operation.get_attr("new_axis_mask") or operation.get_attr("ellipsis_mask"):
            return None
        if operation.get_attr("shrink_axis_mask"):
            return np.asarray(x[int(begin[0])])
        start = None if operation.get_attr("begin_mask") else int(begin[0])
        stop = None if operation.get_attr("end_mask") else int(end[0])
        return x[start : stop : int(strides[0])]
