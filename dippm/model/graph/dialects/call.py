"""`RawCall`: one raw operator while a reader translates it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dippm.model.graph.draft import Draft, Node, Shape, Value
from dippm.model.relax.raw_graph import Attribute


class RawCall:
    """A raw operator with its values, and the draft that receives its nodes."""

    def __init__(
        self,
        draft: Draft,
        name: str,
        inputs: list[Value],
        outputs: list[Value],
        attributes: dict[str, Attribute],
    ) -> None:
        self.draft, self.name = draft, name
        self.inputs, self.outputs, self.attributes = inputs, outputs, attributes

    @property
    def out_shape(self) -> Shape:
        """Shape of the first result."""
        return self.outputs[0].shape

    def emit(self, op: str, inputs: Sequence[Value], **attributes: Any) -> Node:
        """Append a node that computes this call's results."""
        return self.draft.emit(op, inputs, outputs=self.outputs, **attributes)

    def first(self, op: str, inputs: Sequence[Value], **attributes: Any) -> bool:
        """Append a node that computes the first result only; the others are not modelled."""
        self.draft.emit(op, inputs, outputs=self.outputs[:1], **attributes)
        return True

    def step(
        self,
        op: str,
        inputs: Sequence[Value],
        shape: Shape,
        *,
        dtype: str | None = None,
        **attributes: Any,
    ) -> Value:
        """Append an intermediate node of this call; return its result."""
        return self.draft.emit(op, inputs, shape=shape, dtype=dtype, **attributes).out

    def view(self, op: str, value: Value, shape: Shape, **attributes: Any) -> Value:
        """Return a view of a value; a view of a parameter is a parameter and needs no node."""
        if not value.is_static:
            return self.step(op, [value], shape, **attributes)
        view = value.as_static(shape)
        view.producer = value.producer
        return view

    def integers(self, *names: str) -> tuple[int, ...] | None:
        """Return the first of these attributes that exists as integers, None if none does."""
        for name in names:
            value = self.attributes.get(name)
            if isinstance(value, tuple):
                return tuple(int(item) for item in value)
            if isinstance(value, int | float):
                return (int(value),)
        return None

    def integer(self, *names: str, default: int) -> int:
        """Return the first of these attributes that exists as an integer, else the default."""
        values = self.integers(*names)
        return values[0] if values else default

    def number(self, *names: str, default: float) -> float:
        """Return the first of these attributes that is a number, else the default."""
        for name in names:
            value = self.attributes.get(name)
            if isinstance(value, int | float):
                return float(value)
        return default

    def text(self, *names: str, default: str = "") -> str:
        """Return the first of these attributes that is text, else the default."""
        for name in names:
            value = self.attributes.get(name)
            if isinstance(value, str):
                return value
        return default

    def axes(self, *names: str) -> tuple[int, ...]:
        """Return non-negative, sorted axes of the first argument; all axes if none is given."""
        rank = len(self.inputs[0].shape)
        given = self.integers(*(names or ("axis", "axes", "dim", "dims", "reduction_indices")))
        if not given:
            return tuple(range(rank))
        return tuple(sorted({axis % rank for axis in given})) if rank else ()

    def axis(self, *names: str, default: int) -> int:
        """Return one non-negative axis of the first argument."""
        rank = max(len(self.inputs[0].shape), 1)
        return self.integer(*(names or ("axis", "dim")), default=default) % rank
