"""Attention without fused kernels: the calls that one call of attention stands for.

    scores = (scale · queries) keysᵀ + mask
    result = softmax(scores) values

Each is a call like any other, so the copies and casts around it follow from the rules of its kind.
A causal mask that is no tensor of the file is not added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dippm.estimate.conditions import Precision
from dippm.estimate.features.kernels.run import AUTOCAST
from dippm.model.graph.calls import CallSequence, OperatorCall, Tensor
from dippm.model.graph.draft import Shape
from dippm.model.graph.operators import FUSED_RANK


def in_steps(sequence: CallSequence, precision: Precision) -> CallSequence:
    """Return a sequence that spells each call of attention in its steps.

    What fused kernels do not take (more axes) stays one call: its own rule says what runs instead.

    Args:
        sequence: at any batch.
        precision: number format of the run; autocast casts a mask before it is added.
    """
    steps = _Steps(sequence, autocast=precision in AUTOCAST)
    for call in sequence.calls:
        steps.add(call)
    return replace(sequence, tensors=tuple(steps.tensors), calls=tuple(steps.calls))


class _Steps:
    def __init__(self, sequence: CallSequence, *, autocast: bool) -> None:
        self.tensors, self.autocast = list(sequence.tensors), autocast
        self.calls: list[OperatorCall] = []

    def add(self, call: OperatorCall) -> None:
        """Add a call, or its steps if it is attention that fused kernels take."""
        axis = self._axis_of_lengths(call) if call.op == "attention" else None
        if axis is None:
            self.calls.append(call)
        else:
            self._attend(call, heads_inside=axis == -3)

    def _axis_of_lengths(self, call: OperatorCall) -> int | None:
        """Return which axis the queries and keys are along; None if their shapes do not tell.

        Torch has (batch, heads, length, width), Relax (batch, length, heads, width).
        """
        shapes = [self._shape(position) for position in call.inputs[:3]]
        ranks = {len(shape) for shape in shapes}
        if len(shapes) < 3 or len(ranks) > 1 or not 2 <= len(shapes[0]) <= FUSED_RANK:
            return None
        a = call.attributes
        lengths = [a["query_length"], a["key_length"], a["key_length"]]
        axes = (-2, -3) if len(shapes[0]) == FUSED_RANK else (-2,)
        return next((x for x in axes if [shape[x] for shape in shapes] == lengths), None)

    def _attend(self, call: OperatorCall, *, heads_inside: bool) -> None:
        query, key, value = call.inputs[:3]
        if heads_inside:
            query, key, value = (self._swapped(call, p, 1, 2) for p in (query, key, value))
        shape = self._shape(query)
        number = self._add(Tensor((), "float32", is_parameter=True, is_number=True))
        query = self._step(call, "multiply", (query, number), shape)
        rank = len(shape)
        key = self._swapped(call, key, rank - 2, rank - 1)
        table = (*shape[:-1], self._shape(key)[-1])
        scores = self._step(call, "matmul", (query, key), table, {"k": shape[-1]})
        for position in call.inputs[3:]:
            if not self.tensors[position].is_number and _spreads(self._shape(position), table):
                scores = self._step(call, "add", (scores, self._lowered(call, position)), table)
        weights = self._step(call, "softmax", (scores,), table, {"axis": rank - 1})
        if not heads_inside:
            self._call(call, "matmul", (weights, value), call.outputs[0], {"k": table[-1]})
            return
        result = (*shape[:-1], self._shape(value)[-1])
        made = self._step(call, "matmul", (weights, value), result, {"k": table[-1]})
        self._call(call, "transpose", (made,), call.outputs[0], {"permutation": (0, 2, 1, 3)})

    def _lowered(self, call: OperatorCall, position: int) -> int:
        """Cast a mask as autocast does for a call of attention, so that the scores stay half."""
        tensor = self.tensors[position]
        if not self.autocast or not tensor.is_float:
            return position
        out = self._add(Tensor(tensor.shape, "float16"))
        self._call(call, "cast", (position,), out)
        return out

    def _swapped(self, call: OperatorCall, position: int, first: int, second: int) -> int:
        held = self.tensors[position]
        axes = list(range(len(held.shape)))
        axes[first], axes[second] = second, first
        out = self._add(replace(held, shape=tuple(held.shape[axis] for axis in axes)))
        self._call(call, "transpose", (position,), out, {"permutation": tuple(axes)})
        return out

    def _step(
        self,
        call: OperatorCall,
        op: str,
        inputs: tuple[int, ...],
        shape: Shape,
        attributes: Mapping[str, Any] | None = None,
    ) -> int:
        out = self._add(Tensor(shape, "float32"))
        self._call(call, op, inputs, out, attributes)
        return out

    def _call(
        self,
        call: OperatorCall,
        op: str,
        inputs: tuple[int, ...],
        out: int,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.calls.append(
            OperatorCall(op, attributes or {}, inputs, (out,), path=call.path, node=call.node)
        )

    def _add(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _shape(self, position: int) -> Shape:
        return self.tensors[position].shape


def _spreads(shape: Shape, wide: Shape) -> bool:
    """Tell whether a tensor can be broadcast to a shape."""
    if len(shape) > len(wide):
        return False
    return all(n in (1, w) for n, w in zip(reversed(shape), reversed(wide), strict=False))
