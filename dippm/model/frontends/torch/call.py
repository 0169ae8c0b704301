"""`ModelCall`: the tensors of one call of `forward`, and their arrangement into arguments.

The first section arranges tensors by the signature of `forward`. The second reads the call of an
exported program from the program itself: its inputs, their structure, and the axis of the batch.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from dippm.errors import ConversionError, InputShapeError
from dippm.model.frontends.frontend import FORMS, InputSpec, check_kinds

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
        leaves: tensors of the call, in the order of `forward`.
        arrange: function that returns positional and keyword arguments for values by leaf name.
        notes: assumptions about the tensors, for the user.
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
        """Whether an argument is a tensor with known contents."""
        constants = getattr(self.arrange, "constants", {})
        return any(isinstance(value, torch.Tensor) for value in constants.values())

    @property
    def first_shape(self) -> tuple[int, ...]:
        """Shape of the first tensor without the batch; () if there is none."""
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
        return ((*first, *(built.pop(name) for name in by_place if name in built)), built)


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


# The call of an exported program.

UNEQUAL = (
    "the inputs of the exported program have unequal first sizes: they were taken as they are, "
    "without a batch (N in an input's sizes names one)"
)


def call_of_program(program: ExportedProgram, inputs: InputSpec) -> tuple[ModelCall, int]:
    """Return the call of a program, and the batch of its export.

    Args:
        program: program loaded from a file.
        inputs: shapes without the batch, which replace those of the program.

    Raises:
        ConversionError: if the program has no tensor inputs.
        InputShapeError: if an input with a given name does not exist, or the contents of an
            argument are given.
    """
    values = _user_inputs(program)
    tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
    if not tensors:
        raise ConversionError(
            "the exported program has no tensor inputs", "Export the model with its inputs."
        )
    axes, notes = _batch_axes(tensors)
    own = {name: _own_leaf(name, tensor, axes[name]) for name, tensor in tensors.items()}
    batch = next(
        (_size_hint(tensors[n].shape[axis]) for n, axis in axes.items() if axis is not None), 1
    )
    leaves = _given(own, inputs)
    check_kinds(inputs, {name: str(tensor.dtype) for name, tensor in tensors.items()})
    arrange = _Unflatten(program, values)
    numbers = {n: v for n, v in inputs.values.items() if n in values}
    if arrays := [n for n, v in numbers.items() if isinstance(v, tuple)]:
        raise InputShapeError(
            f"an exported program has the contents of its arguments fixed: {', '.join(arrays)}",
            "Give the module itself, or export it again with other numbers.",
        )
    if unknown := set(inputs.values) - set(numbers):
        raise _unknown_input(sorted(unknown)[0], values)
    arrange = replace(arrange, values={**values, **numbers})
    return ModelCall(tuple(leaves), arrange, notes if not inputs.batch_axes else ()), batch


def is_static(program: ExportedProgram) -> bool:
    """Return whether all sizes of a program were fixed at its export."""
    values = _user_inputs(program).values()
    return not any(
        isinstance(v, torch.Tensor) and any(_symbol(size) for size in v.shape) for v in values
    )


@dataclass(frozen=True, slots=True)
class _Unflatten:
    """Arranges tensors in the argument structure of the program's export."""

    program: ExportedProgram
    values: Mapping[str, Any]

    def __call__(self, tensors: Mapping[str, Any]) -> Arguments:
        flat = [tensors.get(name, value) for name, value in self.values.items()]
        args, kwargs = pytree.tree_unflatten(flat, self.program.call_spec.in_spec)
        return args, kwargs


def _user_inputs(program: ExportedProgram) -> dict[str, Any]:
    """Return tensors with the sizes of the first export, and constants, by input name."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found: dict[str, Any] = {}
    for i, spec in enumerate(program.graph_signature.input_specs):
        if spec.kind is not InputKind.USER_INPUT:
            continue
        name = getattr(spec.arg, "name", "") or f"input_{i}"
        node = nodes.get(name)
        value = node.meta.get("val") if node is not None else None
        found[name] = value if isinstance(value, torch.Tensor) else getattr(spec.arg, "value", None)
    return found


def _batch_axes(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, int | None], Any]:
    """Return the axis of the batch by input name, and notes.

    It is the axis with a variable size, or else the first axis if its size is the same for all.
    """
    symbols = [
        (axis, symbol)
        for tensor in tensors.values()
        for axis, size in enumerate(tensor.shape)
        if (symbol := _symbol(size))
    ]
    if symbols:
        _, batch = min(symbols, key=lambda found: found[0])
        axes = {name: _axis_of(batch, tensor) for name, tensor in tensors.items()}
        return axes, ()
    firsts = {int(tensor.shape[0]) for tensor in tensors.values() if tensor.dim()}
    if len(firsts) == 1:
        return {name: 0 if tensor.dim() else None for name, tensor in tensors.items()}, ()
    return dict.fromkeys(tensors), (UNEQUAL,)


def _axis_of(symbol: str, tensor: torch.Tensor) -> int | None:
    return next((i for i, size in enumerate(tensor.shape) if _symbol(size) == symbol), None)


def _symbol(size: Any) -> str:
    node = getattr(size, "node", None)
    return str(node.expr) if node is not None and not isinstance(size, int) else ""


def _size_hint(size: Any) -> int:
    return int(getattr(getattr(size, "node", None), "hint", size))


def _own_leaf(name: str, tensor: torch.Tensor, axis: int | None) -> Leaf:
    sizes = tuple(map(_size_hint, tensor.shape))
    shape = sizes if axis is None else (*sizes[:axis], *sizes[axis + 1 :])
    return Leaf(name, shape, axis, False, tensor.dtype)


def _given(own: Mapping[str, Leaf], inputs: InputSpec) -> list[Leaf]:
    """Return the leaves with the user's shapes."""
    first, inputs = next(iter(own)), inputs.in_order(list(own))
    given = {name or first: name for name in inputs.shapes}
    for name in given:
        if name not in own:
            raise _unknown_input(name, own)
    leaves = []
    for name, leaf in own.items():
        if name not in given:
            leaves.append(leaf)
            continue
        key = given[name]
        named = key in inputs.batch_axes
        axis = inputs.batch_axes.get(key, 0 if leaf.batch_axis is None else leaf.batch_axis)
        leaves.append(Leaf(name, tuple(inputs.shapes[key]), axis, named, leaf.dtype))
    return leaves


def _unknown_input(name: str, known: Mapping[str, Any]) -> InputShapeError:
    return InputShapeError(
        f"the program has no input {name!r}", f"Its inputs: {', '.join(known)}. {FORMS}"
    )
