"""The call of an exported program: its inputs, their structure, and the axis of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from dippm.errors import ConversionError, InputShapeError
from dippm.model.frontends.frontend import FORMS, InputSpec, check_kinds
from dippm.model.frontends.torch.call import Arguments, Leaf, ModelCall

UNEQUAL = (
    "the inputs of the exported program have unequal first sizes: they were taken as they are, "
    "without a batch (N in an input's sizes names one)"
)


def call_of_program(program: ExportedProgram, inputs: InputSpec) -> tuple[ModelCall, int]:
    """Return the call of a program, and the batch of its export.

    Args:
        program: program loaded from a file.
        inputs: shapes without the batch, to replace its own.

    Raises:
        ConversionError: if it has no tensor inputs.
        InputShapeError: if an input with a given name does not exist.
    """
    values = _user_inputs(program)
    tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
    if not tensors:
        raise ConversionError(
            "the exported program has no tensor inputs", "Export the model with its inputs."
        )
    axes, notes = _batch_axes(tensors)
    own = {name: _own_leaf(name, tensor, axes[name]) for name, tensor in tensors.items()}
    batch = next((_hint(tensors[n].shape[axis]) for n, axis in axes.items() if axis is not None), 1)
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
        raise _unknown(sorted(unknown)[0], values)
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
    """Return the axis of the batch: the variable size, else the first one if all share it."""
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


def _hint(size: Any) -> int:
    return int(getattr(getattr(size, "node", None), "hint", size))


def _own_leaf(name: str, tensor: torch.Tensor, axis: int | None) -> Leaf:
    sizes = tuple(map(_hint, tensor.shape))
    shape = sizes if axis is None else (*sizes[:axis], *sizes[axis + 1 :])
    return Leaf(name, shape, axis, False, tensor.dtype)


def _given(own: Mapping[str, Leaf], inputs: InputSpec) -> list[Leaf]:
    """Return the leaves with the user's shapes."""
    first, inputs = next(iter(own)), inputs.in_order(list(own))
    given = {name or first: name for name in inputs.shapes}
    for name in given:
        if name not in own:
            raise _unknown(name, own)
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


def _unknown(name: str, known: Mapping[str, Any]) -> InputShapeError:
    return InputShapeError(
        f"the program has no input {name!r}", f"Its inputs: {', '.join(known)}. {FORMS}"
    )
