"""Which sizes an ONNX model's inputs get: the batch, and what the user asked for.

Nothing here needs TVM or reads a weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import onnx

from dippm.errors import InputShapeError

Size = int | str | None
"""A fixed size, the name of a dynamic one, or None for a nameless dynamic one."""


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """A user input as the file declares it.

    Attributes:
        name: of the input.
        sizes: of its dimensions; None if the file does not even give the rank.
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
        InputShapeError: if an input is no tensor.
    """
    weights = {tensor.name for tensor in graph.initializer}
    return [_declared(value) for value in graph.input if value.name not in weights]


def _declared(value: onnx.ValueInfoProto) -> DeclaredInput:
    if not value.type.HasField("tensor_type"):
        raise InputShapeError(
            f"input {value.name!r} is not a tensor",
            "Export the model with tensors as inputs.",
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return DeclaredInput(value.name, None, tensor.elem_type)
    sizes: list[Size] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value > 0:
            sizes.append(int(dim.dim_value))
        else:
            sizes.append(dim.dim_param or None)
    return DeclaredInput(value.name, tuple(sizes), tensor.elem_type)


def requested_shapes(
    declared: list[DeclaredInput], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the requested shapes by input name; the key "" stands for the first input.

    Raises:
        InputShapeError: if a name is not one of the model's inputs.
    """
    names = [d.name for d in declared]
    for name in shapes:
        if name and name not in names:
            close = get_close_matches(name, names, n=1)
            guess = f"Did you mean {close[0]!r}? " if close else ""
            raise InputShapeError(
                f"the model has no input {name!r}; its inputs are {_list(declared)}",
                f"{guess}{_example(declared)}",
            )
    return {name or names[0]: tuple(shape) for name, shape in shapes.items() if names}


class Binding:
    """How the dimensions of the inputs are bound to numbers.

    Attributes:
        fixed_batch: the batch that the file fixes; None if it leaves it open.
    """

    def __init__(
        self, declared: list[DeclaredInput], requested: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._declared = [_with_rank(d, requested) for d in declared]
        self._requested = requested
        self._batch_axis = {d.name: _batch_axis(d, self._declared) for d in self._declared}
        self.fixed_batch = self._find_fixed_batch()

    def sizes(self) -> Iterable[int]:
        """Return all fixed sizes except the batch, those that were asked for included."""
        for declared in self._declared:
            for axis, size in enumerate(declared.sizes or ()):
                if isinstance(size, int) and axis != self._batch_axis[declared.name]:
                    yield size
        for shape in self._requested.values():
            yield from shape

    def shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        """Return the full shape of each input for one batch size.

        Raises:
            InputShapeError: if the request does not fit, or leaves a size open.
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
                    f"input {name!r} has sizes that the file leaves open: {_list(self._declared)}",
                    _example(self._declared),
                )
        return {
            name: tuple(size for size in sizes if isinstance(size, int))
            for name, sizes in resolved.items()
        }

    def _bind(self, declared: DeclaredInput, batch: int, known: dict[str, int]) -> list[Size]:
        sizes = list(declared.sizes or ())
        axis = self._batch_axis[declared.name]
        if axis is not None:
            symbol, sizes[axis] = sizes[axis], batch
            if isinstance(symbol, str):
                known.setdefault(symbol, batch)
        shape = self._requested.get(declared.name)
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
            hint = f"The model wants channels first: {_text(first_last)}. "
        return InputShapeError(
            f"input {declared.name!r}: got {_text(shape)}, expected {_text(expected)}{without}; "
            f"{why}. Inputs of the model: {_list(self._declared)}",
            hint + "Give the shape that the model was exported for, without the batch.",
        )

    def _find_fixed_batch(self) -> int | None:
        for declared in self._declared:
            axis = self._batch_axis[declared.name]
            if axis is not None and declared.sizes:
                size = declared.sizes[axis]
                return size if isinstance(size, int) else None
        return None


def _with_rank(declared: DeclaredInput, requested: Mapping[str, tuple[int, ...]]) -> DeclaredInput:
    """Give an input without a rank the rank that was asked for."""
    if declared.sizes is not None:
        return declared
    shape = requested.get(declared.name)
    if shape is None:
        raise InputShapeError(
            f"the file gives no rank for input {declared.name!r}",
            _example([declared]),
        )
    return DeclaredInput(declared.name, (None,) * (len(shape) + 1), declared.element_type)


def _batch_axis(declared: DeclaredInput, all_inputs: list[DeclaredInput]) -> int | None:
    """Return which dimension is the batch: a name says so, or it is the first."""
    sizes = declared.sizes or ()
    for axis, size in enumerate(sizes):
        if isinstance(size, str) and _is_batch_name(size):
            return axis
    if not sizes:
        return None
    leaders = [d.sizes[0] for d in all_inputs if d.sizes]
    has_named = any(
        isinstance(s, str) and _is_batch_name(s) for d in all_inputs for s in d.sizes or ()
    )
    if isinstance(sizes[0], int):
        is_open_elsewhere = has_named or any(not isinstance(size, int) for size in leaders)
        return None if is_open_elsewhere or sizes[0] != leaders[0] else 0
    return None if has_named and len(sizes) == 1 else 0


def _is_batch_name(name: str) -> bool:
    folded = name.lower()
    return "batch" in folded or folded in ("n", "b", "bs")


def _list(declared: list[DeclaredInput]) -> str:
    return ", ".join(str(d) for d in declared) or "none"


def _example(declared: list[DeclaredInput]) -> str:
    """Say how to give the sizes of these inputs, in the text form of `input=`."""
    parts = []
    for d in declared:
        sizes = (d.sizes or (None, 3, 224, 224))[1:]
        text = ",".join(str(s if isinstance(s, int) else 128) for s in sizes) or "()"
        parts.append(f"{d.name}={text}")
    return f'Give every open size, without the batch, for instance input="{";".join(parts)}".'


def _text(shape: tuple[object, ...]) -> str:
    inside = ", ".join(str(s) for s in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"
