"""`ModelCall`: the tensors of one call of `forward`, and their arrangement into arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Arrange = Callable[[Mapping[str, Any]], Arguments]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor among the arguments.

    Attributes:
        name: path of the parameter ("batch.image", "state.0"); "" for the first one.
        shape: sizes without the batch.
        batch_axis: position of the batch in the complete shape; None if the tensor has none.
        named: whether the user stated the position of the batch.
        dtype: element type; None if it has to be found by trial.
    """

    name: str
    shape: tuple[int, ...]
    batch_axis: int | None = 0
    named: bool = False
    dtype: torch.dtype | None = None

    def full_shape(self, batch: int) -> tuple[int, ...]:
        """Return the complete shape at a batch."""
        axis = self.batch_axis
        return self.shape if axis is None else (*self.shape[:axis], batch, *self.shape[axis:])


@dataclass(frozen=True, slots=True)
class ModelCall:
    """All arguments of one call of `forward`.

    Attributes:
        leaves: the tensors, in the order of `forward`.
        arrange: function from values by leaf name to positional and keyword arguments.
        notes: assumptions about them, for the user.
    """

    leaves: tuple[Leaf, ...]
    arrange: Arrange
    notes: tuple[str, ...] = ()

    @property
    def has_batch(self) -> bool:
        """Whether any tensor has a batch."""
        return any(leaf.batch_axis is not None for leaf in self.leaves)

    @property
    def has_numbers(self) -> bool:
        """Whether an argument is a tensor with known numbers."""
        constants = getattr(self.arrange, "constants", {})
        return any(isinstance(value, torch.Tensor) for value in constants.values())

    @property
    def first_shape(self) -> tuple[int, ...]:
        """The shape of the first tensor, () if there is none."""
        return self.leaves[0].shape if self.leaves else ()


@dataclass(frozen=True, slots=True)
class ByParameter:
    """Arranges leaves as arguments of a signature, by the paths in their names.

    Attributes:
        parameters: parameters of `forward` without `self`.
        constants: non-tensor arguments by parameter.
    """

    parameters: Sequence[inspect.Parameter]
    constants: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, tensors: Mapping[str, Any]) -> Arguments:
        """Return positional and keyword arguments that contain these tensors."""
        tree: dict[str, Any] = {}
        first = [tensors[""]] if "" in tensors else []
        for name, tensor in {**tensors, **self.constants}.items():
            if name:
                _put(tree, name.split("."), tensor)
        kinds = {p.name: p for p in self.parameters}
        built = {
            name: built_value(part, getattr(kinds.get(name), "annotation", None))
            for name, part in tree.items()
        }
        by_place = [n for n in built if n.isdigit()]
        by_place += [p.name for p in self.parameters if p.kind is p.POSITIONAL_ONLY]
        return (
            (*first, *(built.pop(name) for name in by_place if name in built)),
            built,
        )


def _put(tree: dict[str, Any], steps: list[str], tensor: Any) -> None:
    for step in steps[:-1]:
        tree = tree.setdefault(step, {})
    tree[steps[-1]] = tensor


def built_value(part: Any, annotation: Any) -> Any:
    """Return a tensor unchanged, and named parts as the type of the annotation.

    Without an annotation, parts named 0, 1, ... become a tuple and others a dictionary.
    """
    if not isinstance(part, dict):
        return part
    kind = plain_type(annotation)
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        hints = _hints(kind)
        return kind(**{name: built_value(p, hints.get(name)) for name, p in part.items()})
    parts = {name: built_value(p, None) for name, p in part.items()}
    if set(parts) != {str(i) for i in range(len(parts))}:
        return parts
    values = [parts[str(i)] for i in range(len(parts))]
    return values if kind is list else tuple(values)


def plain_type(annotation: Any) -> Any:
    """Return the class in an annotation, without `| None` and type arguments."""
    choices = [a for a in typing.get_args(annotation) if a is not type(None)]
    if len(choices) == 1 and type(None) in typing.get_args(annotation):
        return plain_type(choices[0])
    return typing.get_origin(annotation) or annotation


def is_tensor(annotation: Any) -> bool:
    """Return whether a parameter takes a tensor of any element type, such as `torch.LongTensor`."""
    kind = plain_type(annotation)
    return kind is torch.Tensor or type(kind) is type(torch.LongTensor)


def is_list_of_tensors(annotation: Any) -> bool:
    """Return whether a parameter takes one tensor per sample."""
    return plain_type(annotation) is list and any(map(is_tensor, typing.get_args(annotation)))


def is_optional(annotation: Any) -> bool:
    """Return whether an annotation allows None."""
    return type(None) in typing.get_args(annotation)


def takes_parts(annotation: Any) -> bool:
    """Return whether a parameter is a dictionary, a data class or a named tuple of tensors."""
    kind = plain_type(annotation)
    return isinstance(kind, type) and (
        issubclass(kind, Mapping) or is_dataclass(kind) or hasattr(kind, "_fields")
    )


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except Exception:  # names that do not exist at run time
        return {}
