"""Example inputs of a module → the sizes for a conversion; no tensor is read."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dippm.errors import InputShapeError, shortened
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.call import is_list_of_tensors
from dippm.model.frontends.torch.prepare import unwrapped
from dippm.model.frontends.torch.signature import forward_parameters

_FORMS = (
    "Give what forward() takes: a tensor, a tuple of its arguments, or a mapping by their names; "
    "tensors may stand in tuples, lists and mappings in them."
)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """Sizes of a module's inputs, read from example inputs.

    Attributes:
        inputs: sizes without the batch by parameter of `forward`.
        batch: number of samples in the tensors.
        whole: the same inputs with complete sizes, for a module whose work does not scale with
            the batch.
    """

    inputs: InputSpec
    batch: int
    whole: InputSpec


def forms(module: torch.nn.Module) -> str:
    """Return a hint on what `forward` of a module takes."""
    names = ", ".join(p.name for p in forward_parameters(unwrapped(module)))
    return f"{_FORMS} {type(module).__name__} takes {names or 'no arguments'}."


def sample_of(module: torch.nn.Module, sample: Any, *, batch_axis: int | None = 0) -> Sample:
    """Return sizes and types of example inputs; no tensor is moved, copied or computed with.

    Args:
        module: module whose `forward` takes them.
        sample: a tensor; a tuple or list of the arguments of `forward`; or a mapping by their
            names, or the single argument. Tensors may be on any device, also meta and fake ones.
        batch_axis: axis of the samples in each tensor; None if they have no batch. A tensor whose
            size there differs from that of the first one has no batch.

    Raises:
        InputShapeError: if it has another form, or does not fit the signature of `forward`.
    """
    module = unwrapped(module)
    arguments = _arguments(forward_parameters(module), sample)
    leaves: dict[str, Any] = {}
    for name, value in arguments.items():
        for path, leaf in _leaves(name, value, 0):
            leaves[path] = leaf
    tensors = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    if not tensors:
        raise InputShapeError("the sample holds no tensor", _FORMS)
    values = {path: leaf for path, leaf in leaves.items() if path not in tensors}
    shapes = {path: tuple(int(size) for size in tensor.shape) for path, tensor in tensors.items()}
    kinds = {path: kind for path, t in tensors.items() if (kind := _kind(t, path))}
    batch = _batch(shapes, batch_axis)
    axes = {path: _axis(shape, batch_axis, batch) for path, shape in shapes.items()}
    sizes = {
        path: shape if (axis := axes[path]) is None else shape[:axis] + shape[axis + 1 :]
        for path, shape in shapes.items()
    }
    return Sample(
        InputSpec(sizes, axes, values, kinds),
        1 if batch is None else batch,
        InputSpec(shapes, dict.fromkeys(shapes), values, kinds),
    )


def _arguments(parameters: list[inspect.Parameter], sample: Any) -> dict[str, Any]:
    """Return the arguments of `forward` by name; those in `*args` are named 0, 1, ..."""
    known = [p for p in parameters if p.kind not in _VARIABLE]
    names = [p.name for p in known]
    kinds = {p.kind for p in parameters}
    if _is_record(sample) or _is_single_list(known, sample):
        sample = (sample,)
    if isinstance(sample, Mapping):
        by_name = set(sample) <= set(names) or inspect.Parameter.VAR_KEYWORD in kinds
        if by_name and all(isinstance(name, str) for name in sample):
            return {str(name): value for name, value in sample.items()}
        needed = [p for p in known if p.default is inspect.Parameter.empty]
        if set(sample) & set(names) or len(needed) != 1:
            strange = [shortened(str(name)) for name in sample if name not in names]
            raise InputShapeError(
                f"forward() has no parameter {', '.join(strange)}",
                f"Its parameters: {', '.join(names) or 'none'}. {_FORMS}",
            )
        sample = (sample,)
    if not isinstance(sample, tuple | list):
        sample = (sample,)
    if not names:  # for a signature that cannot be read, or `*args`
        return {str(place): value for place, value in enumerate(sample)}
    if len(sample) > len(names) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise InputShapeError(
            f"the sample has {len(sample)} arguments, and forward() takes {len(names)}: "
            f"{', '.join(names)}",
            f"Leave out what forward() does not take, such as labels. {_FORMS}",
        )
    if len(sample) > len(names):
        raise InputShapeError(
            "the sample has arguments for *args after named ones", "Give it by name: a mapping."
        )
    return dict(zip(names, sample, strict=False))


def _is_record(value: Any) -> bool:
    """Return whether this is a named tuple or data class: one argument with named parts."""
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type | Mapping)
    return hasattr(value, "_fields") or is_record


def _is_single_list(known: list[inspect.Parameter], sample: Any) -> bool:
    """Return whether a list of tensors is the single argument, annotated as such a list."""
    return isinstance(sample, list) and len(known) == 1 and is_list_of_tensors(known[0].annotation)


def _leaves(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield tensors and numbers by path; skip None, which stands for the default.

    Raises:
        InputShapeError: if there are other objects.
    """
    if depth > _DEEPEST:
        raise InputShapeError(f"the sample is nested more than {_DEEPEST} deep", _FORMS)
    if value is None:
        return
    if isinstance(value, torch.Tensor | bool | int | float):
        yield path, value
        return
    if _is_record(value):
        fields = getattr(value, "_fields", None) or [f.name for f in dataclasses.fields(value)]
        value = {name: getattr(value, name) for name in fields}
    if isinstance(value, Mapping):
        for name, part in value.items():
            if not isinstance(name, str) or not name or "." in name:
                raise InputShapeError(
                    f"{path} of the sample has the key {shortened(repr(name))}",
                    "Keys of mappings must be names without dots.",
                )
            yield from _leaves(f"{path}.{name}", part, depth + 1)
    elif isinstance(value, tuple | list):
        for place, part in enumerate(value):
            yield from _leaves(f"{path}.{place}", part, depth + 1)
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise InputShapeError(f"{path} of the sample is a {kind}", _FORMS)


def _kind(tensor: torch.Tensor, path: str) -> str:
    """Return the kind of a tensor's contents, one of `frontend.KINDS`.

    Raises:
        InputShapeError: if the tensor is complex, sparse or nested.
    """
    if tensor.is_complex() or tensor.layout is not torch.strided or tensor.is_nested:
        what = "complex numbers" if tensor.is_complex() else f"the layout {tensor.layout}"
        raise InputShapeError(
            f"{path} of the sample is a tensor with {what}", "Give dense tensors of real numbers."
        )
    if tensor.dtype is torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "int"


def _batch(shapes: Mapping[str, tuple[int, ...]], axis: int | None) -> int | None:
    """Return the size of the batch; None if there is none.

    Raises:
        InputShapeError: if no tensor has such an axis, or a size is 0.
    """
    empty = [path for path, shape in shapes.items() if 0 in shape]
    if empty:
        raise InputShapeError(f"{empty[0]} of the sample has a size of 0", "Give one with content.")
    if axis is None:
        return None
    if isinstance(axis, bool) or not isinstance(axis, int) or axis < 0:
        raise InputShapeError(f"batch_axis is {axis!r}", "Give 0, 1, ..., or None for no batch.")
    sizes = [shape[axis] for shape in shapes.values() if len(shape) > axis]
    if not sizes:
        raise InputShapeError(
            f"no tensor of the sample has an axis {axis}",
            "Give batch_axis=None if the inputs have no batch.",
        )
    return sizes[0]


def _axis(shape: tuple[int, ...], axis: int | None, batch: int | None) -> int | None:
    has_batch = axis is not None and len(shape) > axis and shape[axis] == batch
    return axis if has_batch else None
