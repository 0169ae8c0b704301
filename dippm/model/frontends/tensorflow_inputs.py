"""Declared inputs of a TensorFlow or Keras model, bound to the shapes that the user gave.

Shared by `keras` and `savedmodel`; loads no framework.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TypeVar

import numpy as np

from dippm.errors import FrameworkNotInstalledError, InputShapeError
from dippm.model.frontends.frontend import InputSpec, check_kinds, marker_batch
from dippm.model.relax.raw_graph import InputValue

Sizes = tuple[int | None, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """An input as the model declares it.

    Attributes:
        name: its name for users.
        tensor: its name inside the model's graph.
        shape: complete sizes, None for a size that is free; None for any rank.
        dtype: TensorFlow's number of its element type.
        is_whole: whether it holds whole numbers or truth values.
    """

    name: str
    tensor: str
    shape: Sizes | None
    dtype: int
    is_whole: bool = False

    def has_no_batch(self, others: Sequence[DeclaredInput], asked: Container[str]) -> bool:
        """Return whether an input that the user did not give is declared without a batch.

        A number has none, nor has an input of fixed sizes if another input has a free batch.
        """
        if not self.shape or self.name in asked:
            return self.shape == () and self.name not in asked
        is_fixed = None not in self.shape
        return is_fixed and any(one.shape and one.shape[0] is None for one in others)

    def without(self, axis: int | None) -> Sizes | None:
        """Return the sizes without the batch; None for any.

        Raises:
            InputShapeError: if the batch cannot be at this axis.
        """
        if self.shape is None or axis is None:
            return self.shape
        inside = axis < len(self.shape)
        if not inside or (axis and self.shape[axis] is not None and None in self.shape):
            raise InputShapeError(
                f"input {self.name}: the batch is not at position {axis} of {_text(self.shape)}",
                "Put N where the model takes any size.",
            )
        return (*self.shape[:axis], *self.shape[axis + 1 :])


@dataclass(frozen=True, slots=True)
class BoundInputs:
    """Inputs with static shapes and values.

    Attributes:
        shapes: complete shapes, in the order of the declared inputs.
        batch: the marker or the fixed batch of the file; 1 if no input has a batch.
        batch_is_symbolic: whether `batch` is a marker.
        axes: position of the batch in each shape; None without one.
        values: contents of each input that was given a value, else None.
    """

    shapes: tuple[tuple[int, ...], ...]
    batch: int
    batch_is_symbolic: bool
    axes: tuple[int | None, ...] = ()
    values: tuple[InputValue | None, ...] = ()

    def at(self, batch: int) -> BoundInputs:
        """Return the same inputs at one fixed batch."""
        shapes = tuple(
            shape if axis is None else (*shape[:axis], batch, *shape[axis + 1 :])
            for shape, axis in zip(self.shapes, self.axes, strict=True)
        )
        return replace(self, shapes=shapes, batch=batch, batch_is_symbolic=False)


def import_tensorflow() -> ModuleType:
    """Import TensorFlow without its log lines and without a GPU.

    Raises:
        FrameworkNotInstalledError: if it is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    try:
        import tensorflow
    except ImportError as error:
        raise FrameworkNotInstalledError(
            f"this model needs TensorFlow, which cannot be imported: {error}",
            'pip install "dippm[tensorflow]"',
        ) from error
    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow  # type: ignore[no-any-return]


def bind(
    declared: Sequence[DeclaredInput], spec: InputSpec, weight_sizes: Sequence[int] = ()
) -> BoundInputs:
    """Bind every input to a static shape.

    Args:
        declared: inputs of the model.
        spec: the user's specification.
        weight_sizes: sizes that the marker batch must not divide.

    Raises:
        InputShapeError: if the specification does not fit, or leaves a size unknown.
    """
    spec = spec.in_order([one.name for one in declared])
    check_kinds(spec, {one.name: _dtype(one) for one in declared})
    known = _by_name(declared, spec.values)
    asked = _by_name(declared, spec.shapes)
    asked |= {n: np.shape(v) for n, v in known.items() if isinstance(v, tuple)}
    marked: dict[str, int | None] = _by_name(declared, spec.batch_axes) | dict.fromkeys(known)
    values = _values(declared, known)
    rests: list[tuple[int, ...]] = []
    axes: list[int | None] = []
    for one in declared:
        axis = marked.get(one.name, None if one.has_no_batch(declared, asked) else 0)
        rests.append(_sizes(one, asked.get(one.name), axis, declared))
        axes.append(axis)
    fixed = {
        one.shape[axis]
        for one, axis in zip(declared, axes, strict=True)
        if axis is not None and one.shape and one.shape[axis] is not None
    }
    if len(fixed) > 1:
        names = ";".join(
            f"{one.name}=fixed:{_plain([s or 128 for s in one.shape or ()])}"
            for one in declared
            if one.shape
        )
        raise InputShapeError(
            f"the file fixes several batch sizes: {_list_inputs(declared)}",
            "Export the model again with a dynamic batch, or say which inputs have none: "
            f'input="{names}".',
        )
    sizes = [size for rest in rests for size in rest]
    is_symbolic = not fixed and any(axis is not None for axis in axes)
    batch = marker_batch([*sizes, *weight_sizes]) if is_symbolic else next(iter(fixed), None) or 1
    shapes = tuple(
        rest if axis is None else (*rest[:axis], batch, *rest[axis:])
        for rest, axis in zip(rests, axes, strict=True)
    )
    return BoundInputs(shapes, batch, is_symbolic, tuple(axes), values)


def _dtype(one: DeclaredInput) -> str:
    import tensorflow as tf

    return str(tf.as_dtype(one.dtype).name)


def _by_name(declared: Sequence[DeclaredInput], asked: Mapping[str, T]) -> dict[str, T]:
    names = [one.name for one in declared]
    found = dict(asked)
    if "" in found:
        found = {**found, names[0]: found[""]}
        del found[""]
    unknown = [name for name in found if name not in names]
    if unknown:
        raise InputShapeError(
            f"no input is called {', '.join(unknown)}; the model has {_list_inputs(declared)}",
            _example(declared),
        )
    return found


def _values(
    declared: Sequence[DeclaredInput], given: Mapping[str, InputValue]
) -> tuple[InputValue | None, ...]:
    for one in declared:
        if one.name not in given:
            continue
        value = given[one.name]
        if one.shape != () and not isinstance(value, tuple):
            raise InputShapeError(
                f"input {one.name} is not a single number: {_text(one.shape)}", _example(declared)
            )
        if one.is_whole and not _is_whole(value):
            raise InputShapeError(
                f"input {one.name} holds whole numbers, got {value}", _example(declared)
            )
    return tuple(given.get(one.name) for one in declared)


def _is_whole(value: InputValue) -> bool:
    return all(map(_is_whole, value)) if isinstance(value, tuple) else value == int(value)


def _sizes(
    one: DeclaredInput,
    asked: tuple[int, ...] | None,
    axis: int | None,
    declared: Sequence[DeclaredInput],
) -> tuple[int, ...]:
    """Return one input's sizes without the batch."""
    expected = one.without(axis)
    if asked is None:
        if expected is None or None in expected:
            raise InputShapeError(
                f"input {one.name} has no fixed size: {_text(one.shape)}; "
                f"the model takes {_list_inputs(declared)}",
                _example(declared),
            )
        return tuple(size for size in expected if size is not None)
    if expected is None or _fits(asked, expected):
        return asked
    if one.shape is not None and axis is not None and _fits(asked, one.shape):
        raise InputShapeError(
            f"input {one.name}: got {_text(asked)} without the batch, which is the complete shape "
            f"{_text(one.shape)}",
            f"Leave the batch out: give {_plain(asked[1:])}, or give "
            f'"{one.name}=fixed:{_plain(asked)}" if this input has no batch.',
        )
    raise InputShapeError(
        f"input {one.name}: got {_text(asked)} without the batch, expected {_text(expected)}"
        + ("" if axis == 0 else f" of {_text(one.shape)}"),
        _advice(asked, expected, declared),
    )


def _fits(asked: Sequence[int], expected: Sizes) -> bool:
    return len(asked) == len(expected) and all(
        size in (None, given) for given, size in zip(asked, expected, strict=True)
    )


def _advice(asked: tuple[int, ...], expected: Sizes, declared: Sequence[DeclaredInput]) -> str:
    last, first = (*asked[1:], *asked[:1]), (*asked[-1:], *asked[:-1])
    if _fits(last, expected):
        return f"This model expects channels last: give {_plain(last)}."
    if _fits(first, expected):
        return f"This model expects channels first: give {_plain(first)}."
    if _fits(asked[1:], expected):
        return f"Leave the batch out: give {_plain(asked[1:])}."
    return _example(declared)


def _example(declared: Sequence[DeclaredInput]) -> str:
    placed = [
        one for one in declared if one.shape and one.shape[0] is not None and None in one.shape
    ]
    if placed:
        named = [(one.name, ",".join(str(s or "N") for s in one.shape or ())) for one in placed]
        forms = [f"{name}={text}" if len(declared) > 1 else text for name, text in named]
        return (
            f'Give the sizes, with N in place of the batch: input="{";".join(forms)}"; '
            '"fixed:..." for an input without a batch.'
        )
    texts = [
        (one.name, _plain([size or 128 for size in (one.shape or (None, None))[1:]]))
        for one in declared
    ]
    if len(texts) == 1:
        return f'Give the sizes without the batch, for instance input="{texts[0][1]}".'
    return 'Name the inputs: input="' + ";".join(f"{n}={t}" for n, t in texts) + '".'


def _list_inputs(declared: Sequence[DeclaredInput]) -> str:
    return ", ".join(f"{one.name} {_text(one.shape)}" for one in declared)


def _text(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "(any rank)"
    return "(" + ", ".join("?" if size is None else str(size) for size in shape) + ")"


def _plain(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))
