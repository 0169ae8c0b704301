"""The declared inputs of an ONNX file, and their names in messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx

from dippm.errors import InputShapeError

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
            f"input {value.name!r} is not a tensor",
            "Export the model with tensors as inputs.",
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


def list_inputs(declared: list[DeclaredInput]) -> str:
    """Return all inputs in words."""
    return ", ".join(str(d) for d in declared) or "none"


def example(declared: list[DeclaredInput]) -> str:
    """Return an example of these inputs in the text form of `input=`."""
    parts = []
    for d in declared:
        sizes = (d.sizes or (None, 3, 224, 224))[1:]
        written = ",".join(str(s if isinstance(s, int) else 128) for s in sizes) or "()"
        parts.append(f"{d.name}={written}")
    return f'Give every open size, without the batch, for instance input="{";".join(parts)}".'


def text(shape: tuple[object, ...]) -> str:
    """Return a shape in Python's notation."""
    inside = ", ".join(str(s) for s in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def where_batch(declared: Iterable[DeclaredInput]) -> str:
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
