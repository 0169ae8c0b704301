"""`TensorFlowCall`, one operation as a converter sees it, and `Converter`.

To add an operator: write a function from `TensorFlowCall` to Relax expressions, one per output, and
register it with `converts` in the table of its file. If it returns None, the operation is carried
over unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf
from tvm import relax

from dippm.errors import ConversionError

Results: TypeAlias = relax.Expr | Sequence[relax.Expr | None] | None
Build = Callable[["TensorFlowCall"], Results]


class Importer(Protocol):
    """The methods of the importer that converters use."""

    statics: Any

    def expression(self, tensor: tf.Tensor) -> relax.Expr:
        """Return the Relax value of a tensor."""
        ...

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Bind an expression."""
        ...

    def depends_on_input(self, tensor: tf.Tensor) -> bool:
        """Return whether a tensor is an activation."""
        ...


@dataclass(frozen=True, slots=True)
class Converter:
    """The translation of one type of operation.

    Attributes:
        build: function that returns the Relax expressions.
        reads: positions of the inputs read as tensors, None for all; others are sizes and axes.
    """

    build: Build
    reads: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A group of operations that forms one operator: the tensors it reads, and its translation."""

    reads: tuple[tf.Tensor, ...]
    build: Build


def converts(
    table: dict[str, Converter], *names: str, reads: tuple[int, ...] | None = None
) -> Callable[[Build], Build]:
    """Register a converter for operations of these types."""

    def register(build: Build) -> Build:
        table.update(dict.fromkeys(names, Converter(build, reads)))
        return build

    return register


@dataclass(frozen=True, slots=True)
class TensorFlowCall:
    """One operation, with its arguments as Relax values or static numbers."""

    operation: tf.Operation
    importer: Importer

    def x(self, position: int = 0) -> relax.Expr:
        """Return an input as a Relax value."""
        return self.importer.expression(self.operation.inputs[position])

    def expression(self, tensor: tf.Tensor) -> relax.Expr:
        """Return any tensor of the graph as a Relax value."""
        return self.importer.expression(tensor)

    def emit(self, expression: relax.Expr) -> relax.Var:
        """Bind an intermediate expression."""
        return self.importer.emit(expression)

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Return the static shape of an input, from Relax if unknown to TensorFlow."""
        tensor = self.operation.inputs[position]
        if tensor.shape.is_fully_defined():
            return tuple(tensor.shape.as_list())
        return shape_of(self.x(position))

    def out_shape(self, position: int = 0) -> tuple[int, ...] | None:
        """Return the static shape of an output, None if it is not known."""
        shape = self.operation.outputs[position].shape
        return tuple(shape.as_list()) if shape.is_fully_defined() else None

    def attr(self, name: str) -> Any:
        """Return an attribute, with text as `str`."""
        value = self.operation.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    def static(self, position: int) -> np.ndarray[Any, Any] | None:
        """Return an input's value, None if it is unknown."""
        value: np.ndarray[Any, Any] | None = self.importer.statics.value(
            self.operation.inputs[position]
        )
        return value

    def integers(self, position: int) -> tuple[int, ...] | None:
        """Return an input's value as integers, None if it is unknown."""
        value = self.static(position)
        return None if value is None else tuple(int(v) for v in np.atleast_1d(value).reshape(-1))

    def required(self, position: int) -> tuple[int, ...]:
        """Return an input's value as integers.

        Raises:
            ConversionError: if it depends on data.
        """
        value = self.integers(position)
        if value is None:
            tensor = self.operation.inputs[position]
            raise ConversionError(
                f"{self.operation.type} ({self.operation.name}) takes sizes or axes from data: "
                f"{tensor.name}",
                "Export the model with static sizes apart from the batch.",
            )
        return value


def shape_of(expression: relax.Expr) -> tuple[int, ...]:
    """Return the static shape that Relax inferred."""
    return tuple(int(size.value) for size in expression.ty.shape.values)


def dtype_of(expression: relax.Expr) -> str:
    """Return the dtype that Relax inferred."""
    return str(expression.ty.dtype)
