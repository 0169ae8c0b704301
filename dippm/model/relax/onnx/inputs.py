"""Sizes of an ONNX model's inputs, from the file, the batch and the user's specification.

Nothing here needs TVM or reads weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod

import numpy as np
import onnx

from dippm.errors import InputShapeError
from dippm.model.relax.raw_graph import InputValue

MAX_SIZE = 1 << 40
"""Maximum plausible size of one dimension."""

Size = int | str | None
"""A fixed size, the name of a dynamic one, or None for an unnamed dynamic one."""


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """A user input as the file declares it.

    Attributes:
        name: name of the input.
        sizes: sizes of its dimensions; None if the file does not even state the rank.
        element_type: an ONNX tensor type.
    """

    name: str
    sizes: tuple[Size, ...] | None
    element_type: int

    def __str__(self) -> str:
        if self.sizes is None:
            return f"{self.name} (rank not given)"
        return f"{self.name} [{', '.join('?' if s is None else str(s) for s in self.sizes)}]"


def declared_inputs(graph: onnx.GraphProto) -> list[DeclaredInput]:
    """Return the inputs that are not initializers.

    Raises:
        InputShapeError: if an input is not a tensor.
    """
    weights = {tensor.name for tensor in graph.initializer}
    return [_declared_input(value) for value in graph.input if value.name not in weights]


def _declared_input(value: onnx.ValueInfoProto) -> DeclaredInput:
    if not value.type.HasField("tensor_type"):
        raise InputShapeError(
            f"input {value.name!r} is not a tensor", "Export the model with tensors as inputs."
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return DeclaredInput(value.name, None, tensor.elem_type)
    sizes: list[Size] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and not -1 <= dim.dim_value <= MAX_SIZE:
            raise InputShapeError(
                f"input {value.name!r} has a size of {dim.dim_value} in the file",
                f"A size is between 1 and {MAX_SIZE:,}; export the model again.",
            )
        if dim.HasField("dim_value") and dim.dim_value > 0:
            sizes.append(int(dim.dim_value))
        else:
            sizes.append(dim.dim_param or None)
    return DeclaredInput(value.name, tuple(sizes), tensor.elem_type)


def _list_inputs(declared: list[DeclaredInput]) -> str:
    """Return all inputs in words."""
    return ", ".join(str(d) for d in declared) or "none"


def _example_inputs(declared: list[DeclaredInput]) -> str:
    """Return an example of these inputs in the text form of `input=`."""
    try:
        axes = batch_axes([d for d in declared if d.sizes is not None], {})
    except InputShapeError:
        axes = {}
    parts = []
    for d in declared:
        sizes = (None, 3, 224, 224) if d.sizes is None else d.sizes
        axis = axes.get(d.name, 0)
        fixed = "fixed:" if axis is None and sizes else ""
        written = [str(s if isinstance(s, int) else 128) for i, s in enumerate(sizes) if i != axis]
        parts.append(f"{d.name}={fixed}{','.join(written) or '()'}")
    return f'Give every open size, without the batch, for instance input="{";".join(parts)}".'


def _shape_text(shape: tuple[object, ...]) -> str:
    """Return a shape in Python's notation."""
    inside = ", ".join(str(s) for s in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def _where_batch(declared: Iterable[DeclaredInput]) -> str:
    """Return a hint on how to state the batch axis, or that there is none."""
    given = [d for d in declared if d.sizes]
    marked, fixed = [], []
    for d in given:
        sizes = [str(s) if isinstance(s, int) else "128" for s in d.sizes or ()]
        fixed.append(f"{d.name}=fixed:{','.join(sizes)}")
        place = min(1, len(sizes) - 1)
        marked.append(f"{d.name}={','.join([*sizes[:place], 'N', *sizes[place + 1 :]])}")
    return (
        f'Say where the batch is, N marking its place: input="{";".join(marked)}"; or that an '
        f'input has none: input="{";".join(fixed)}".'
    )


MAX_ELEMENTS = 1 << 50
"""Maximum plausible number of elements of a tensor."""


@dataclass(frozen=True, slots=True)
class RequestedInputs:
    """The user's specification by names of the model's inputs; see `InputSpec`."""

    shapes: Mapping[str, tuple[int, ...]]
    batch_axes: Mapping[str, int | None]
    values: Mapping[str, InputValue]


def match_request(
    declared: list[DeclaredInput],
    shapes: Mapping[str, tuple[int, ...]],
    batch_axes: Mapping[str, int | None] | None = None,
    values: Mapping[str, InputValue] | None = None,
) -> RequestedInputs:
    """Return the user's specification by names of the inputs; "" stands for the first one.

    Raises:
        InputShapeError: if a name is not one of the model's inputs, or a value does not fit its
            input.
    """
    names = [d.name for d in declared]
    batch_axes, values = batch_axes or {}, values or {}
    for name in [*shapes, *values]:
        if name and name not in names:
            close = get_close_matches(name, names, n=1)
            guess = f"Did you mean {close[0]!r}? " if close else ""
            raise InputShapeError(
                f"the model has no input {name!r}; its inputs are {_list_inputs(declared)}",
                f"{guess}{_example_inputs(declared)}",
            )
    if not names:
        return RequestedInputs({}, {}, {})
    sizes = {name or names[0]: tuple(shape) for name, shape in shapes.items()}
    axes = {name or names[0]: axis for name, axis in batch_axes.items()}
    numbers: dict[str, InputValue] = {name or names[0]: value for name, value in values.items()}
    for one in declared:
        value = numbers.get(one.name)
        if value is not None and len(one.sizes or ()) == 1 and (one.sizes or (1,))[0] != 1:
            numbers[one.name] = value = value if isinstance(value, tuple) else (value,)
        if isinstance(value, tuple):
            _check_value(one, value, declared)
            continue
        if one.sizes == () and len(sizes.get(one.name, ())) == 1 and one.name not in axes:
            (numbers[one.name],) = sizes.pop(one.name)  # an integer for a scalar is its value
        if value is not None and any(size != 1 for size in one.sizes or ()):
            raise InputShapeError(
                f"input {one} holds more than one number: value:{numbers[one.name]} does not say "
                "what they are",
                _example_inputs(declared),
            )
    return RequestedInputs(sizes, axes, numbers)


def _check_value(
    one: DeclaredInput, value: tuple[InputValue, ...], all_inputs: list[DeclaredInput]
) -> None:
    shape = np.shape(value)
    fits = one.sizes is None or (
        len(one.sizes) == len(shape)
        and all(not isinstance(s, int) or s == n for s, n in zip(one.sizes, shape, strict=True))
    )
    if not fits:
        raise InputShapeError(
            f"input {one}: its value has the sizes {_shape_text(shape)}",
            _example_inputs(all_inputs),
        )


class Binding:
    """Binding of the inputs' dimensions to numbers.

    Attributes:
        fixed_batch: the fixed batch of the file; None if it is free.
        values: contents of the inputs that the user gave a value for.
        has_batch: whether any input has a batch.
        lacks_common_size: whether no input has a batch, and the user did not say so.
        assumed: inputs whose batch axis is stated by neither the file nor the user.
    """

    def __init__(self, declared: list[DeclaredInput], requested: RequestedInputs) -> None:
        self._declared = [_with_rank(d, requested) for d in declared]
        self._requested = requested.shapes
        self.values = requested.values
        self._batch_axis = batch_axes(self._declared, requested.batch_axes, requested.values)
        self.has_batch = any(axis is not None for axis in self._batch_axis.values())
        self.assumed = tuple(
            d.name
            for d in self._declared
            if d.name not in requested.batch_axes
            and (axis := self._batch_axis[d.name]) is not None
            and not is_batch_name((d.sizes or ())[axis])
        )
        self.fixed_batch = self._find_fixed_batch()
        self.lacks_common_size = not self.has_batch and any(
            d.sizes and d.name not in requested.batch_axes for d in self._declared
        )

    def with_batch_at(self, axis: int) -> Binding | None:
        """Return the binding with another axis for the assumed batches; None if none fits."""
        axes = {d.name: axis for d in self._declared if d.name in self.assumed}
        ranks = {d.name: len(d.sizes or ()) for d in self._declared}
        if not axes or any(axis >= ranks[name] for name in axes):
            return None
        known = {n: a for n, a in self._batch_axis.items() if n not in axes}
        return Binding(self._declared, RequestedInputs(self._requested, known | axes, self.values))

    def sizes(self) -> Iterable[int]:
        """Return all fixed sizes except the batch, including those of the user."""
        for declared in self._declared:
            for axis, size in enumerate(declared.sizes or ()):
                if isinstance(size, int) and axis != self._batch_axis[declared.name]:
                    yield size
        for shape in self._requested.values():
            yield from shape

    def symbols(self, batch: int) -> dict[str, int]:
        """Return the value of each named size of the inputs."""
        known: dict[str, int] = {}
        for declared in self._declared:
            self._bind(declared, batch, known)
        return known

    def keeps_file_sizes(self, batch: int) -> bool:
        """Return whether all fixed sizes of the file are kept, so that inner sizes stay valid."""
        return self.fixed_batch is None or batch == self.fixed_batch

    def shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        """Return the full shape of each input for one batch size.

        Raises:
            InputShapeError: if the specification does not fit, or leaves a size unknown.
        """
        known: dict[str, int] = {}
        bound = {d.name: self._bind(d, batch, known) for d in self._declared}
        resolved = {
            name: [known.get(size, size) if isinstance(size, str) else size for size in sizes]
            for name, sizes in bound.items()
        }
        for name, sizes in resolved.items():
            if any(not isinstance(size, int) for size in sizes):
                raise InputShapeError(
                    f"input {name!r} has sizes that the file leaves open: "
                    f"{_list_inputs(self._declared)}",
                    _example_inputs(self._declared),
                )
        shapes = {
            name: tuple(size for size in sizes if isinstance(size, int))
            for name, sizes in resolved.items()
        }
        for name, shape in shapes.items():
            check_size(shape, f"input {name!r}")
        return shapes

    def how_to_name_the_batch(self) -> str:
        """Return a hint on how to state the batch axis."""
        return _where_batch(self._declared)

    def _bind(self, declared: DeclaredInput, batch: int, known: dict[str, int]) -> list[Size]:
        sizes = list(declared.sizes or ())
        axis = self._batch_axis[declared.name]
        shape = self._requested.get(declared.name)
        value = self.values.get(declared.name)
        if isinstance(value, tuple):
            for symbol, size in zip(sizes, np.shape(value), strict=True):
                if isinstance(symbol, str):
                    known.setdefault(symbol, size)
            return list(np.shape(value))
        if axis is not None and axis < len(sizes):
            symbol, sizes[axis] = sizes[axis], batch
            if isinstance(symbol, str):
                known.setdefault(symbol, batch)
        if shape is None:
            return sizes
        places = [i for i in range(len(sizes)) if i != axis]
        if len(shape) != len(places):
            raise self._mismatch(declared, shape, "the number of dimensions differs")
        for place, size in zip(places, shape, strict=True):
            wanted = sizes[place]
            if isinstance(wanted, int) and wanted != size:
                raise self._mismatch(declared, shape, f"{size} where the file says {wanted}")
            if isinstance(wanted, str):
                known.setdefault(wanted, size)
            sizes[place] = size
        return sizes

    def _mismatch(
        self, declared: DeclaredInput, shape: tuple[int, ...], why: str
    ) -> InputShapeError:
        sizes, axis = declared.sizes or (), self._batch_axis[declared.name]
        expected = tuple("any" if s is None else s for i, s in enumerate(sizes) if i != axis)
        without = " (without the batch)" if axis is not None else ""
        first_last = (*shape[-1:], *shape[:-1])
        hint = ""
        if len(shape) == len(expected) and all(
            e in (s, "any") or isinstance(e, str) for e, s in zip(expected, first_last, strict=True)
        ):
            hint = f"The model wants channels first: {_shape_text(first_last)}. "
        return InputShapeError(
            f"input {declared.name!r}: got {_shape_text(shape)}, "
            f"expected {_shape_text(expected)}{without}; "
            f"{why}. Inputs of the model: {_list_inputs(self._declared)}",
            hint + "Give the shape that the model was exported for, without the batch.",
        )

    def _find_fixed_batch(self) -> int | None:
        for declared in self._declared:
            axis = self._batch_axis[declared.name]
            if axis is not None and declared.sizes and axis < len(declared.sizes):
                size = declared.sizes[axis]
                return size if isinstance(size, int) else None
        return None


def _with_rank(declared: DeclaredInput, requested: RequestedInputs) -> DeclaredInput:
    """Return an input without a rank with the rank that the user gave."""
    if declared.sizes is not None:
        return declared
    if declared.name in requested.values:
        sizes = np.shape(requested.values[declared.name])
        return DeclaredInput(declared.name, sizes, declared.element_type)
    shape = requested.shapes.get(declared.name)
    if shape is None:
        raise InputShapeError(
            f"the file gives no rank for input {declared.name!r}", _example_inputs([declared])
        )
    has_batch = requested.batch_axes.get(declared.name, 0) is not None
    rank = len(shape) + has_batch
    return DeclaredInput(declared.name, (None,) * rank, declared.element_type)


def check_size(shape: tuple[int, ...], what: str) -> None:
    """Raise if a tensor is too large for any machine.

    Raises:
        InputShapeError: naming the tensor.
    """
    if prod(shape) > MAX_ELEMENTS:
        raise InputShapeError(
            f"{what} has the sizes {_shape_text(shape)}: {prod(shape):.1e} numbers, more than any "
            "device holds",
            "Check the sizes in the file, or give other ones where it leaves them open.",
        )


# The batch dimension of each input of an ONNX model.
#
# The user's statement comes first, then a name in the file ("batch", "N"), then a size common to
# all inputs. An ambiguous model is refused, because a graph with the wrong batch dimension would be
# wrong without notice.


_OTHER_THINGS = """
    seq sequence len length time times step steps frame frames token tokens node nodes edge edges
    height width depth columns cols points channels features words chars boxes rois timesteps
    past
"""
_OTHER = frozenset(_OTHER_THINGS.split())


def is_batch_name(size: Size) -> bool:
    """Return whether a dimension is named as the batch."""
    folded = size.lower() if isinstance(size, str) else ""
    return "batch" in folded or folded in ("n", "b", "bs")


def batch_axes(
    declared: list[DeclaredInput], given: Mapping[str, int | None], values: Collection[str] = ()
) -> dict[str, int | None]:
    """Return the batch axis of each input, None for an input without one.

    Args:
        declared: all inputs, with ranks.
        given: batch axes stated by the user.
        values: inputs with a value from the user.

    Raises:
        InputShapeError: if it is unknown; the hint shows how to state it.
    """
    axes: dict[str, int | None] = dict.fromkeys(values)
    axes |= {d.name: given[d.name] for d in declared if d.name in given}
    rest = [d for d in declared if d.name not in axes]
    has_named = any(is_batch_name(size) for d in declared for size in d.sizes or ())
    for d in rest:
        named = [i for i, size in enumerate(d.sizes or ()) if is_batch_name(size)]
        axes[d.name] = named[0] if named else None
    silent = [d for d in rest if axes[d.name] is None and d.sizes]
    if has_named or any(axis is not None for axis in given.values()):
        for d in silent:
            is_nameless = d.sizes is not None and d.sizes[0] is None
            axes[d.name] = 0 if is_nameless and len(d.sizes or ()) > 1 else None
        return axes
    if not any(name in given for name in axes):
        axes |= _by_common_sense(silent)
    return axes


def _by_common_sense(declared: list[DeclaredInput]) -> dict[str, int | None]:
    """Return the first dimension as the batch if all inputs agree with that."""
    leaders = {d.name: (d.sizes or (None,))[0] for d in declared}
    for d in declared:
        if _says_otherwise(leaders[d.name]):
            raise _unknown(declared, f"its first dimension is called {leaders[d.name]!r}", d)
    is_open = {name: not isinstance(size, int) for name, size in leaders.items()}
    if any(is_open.values()):
        for d in declared:
            if not is_open[d.name] and any(not isinstance(size, int) for size in d.sizes or ()):
                raise _unknown(
                    declared, "other inputs leave their first dimension open, it another one", d
                )
        return {name: 0 if open_ else None for name, open_ in is_open.items()}
    wide = [d for d in declared if len(d.sizes or ()) > 1] or declared
    fixed = {leaders[d.name] for d in wide}
    for d in wide:
        if leaders[d.name] != 1 and any(not isinstance(size, int) for size in d.sizes or ()):
            raise _unknown(
                declared, f"it fixes its first dimension at {leaders[d.name]} and not the rest", d
            )
    batch = 1 if 1 in fixed else next(iter(fixed)) if len(fixed) == 1 else None
    return {name: 0 if size == batch else None for name, size in leaders.items()}


def _says_otherwise(size: Size) -> bool:
    if not isinstance(size, str):
        return False
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", size).lower())
    return any(word in _OTHER for word in words)


def _unknown(all_inputs: list[DeclaredInput], why: str, one: DeclaredInput) -> InputShapeError:
    return InputShapeError(
        f"the file does not say which dimension of input {one} is the batch: {why} "
        f"(inputs: {_list_inputs(all_inputs)})",
        _where_batch(all_inputs),
    )
