"""Constant folding during export: values that a model computes from numbers alone.

A packed vision tower receives the rows and columns of each image as numbers, and splits, sorts and
masks by values computed from them. None of that depends on data, but the exporter treats every
tensor as unknown. `ConstantFolding` evaluates functions of known numbers, so that the model can
read the results; together with tensors without data they are constants. Numbers that a module
stores as tensors, such as the stride of a layer of an audio codec, are known as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

MOST = 1 << 20
"""Maximum number of elements of a folded tensor."""

MAKERS = frozenset(
    """
    arange as_tensor empty eye full linspace ones tensor tril_indices triu_indices zeros
    """.split()
)


SIZED = frozenset("expand narrow repeat reshape tile view".split())
"""Methods that take sizes as separate arguments."""

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

ConstantTensors = Mapping[str, Mapping[str, torch.Tensor]]
"""Constant tensors by path of the submodule and attribute."""


def constant_tensors(module: torch.nn.Module) -> ConstantTensors:
    """Return the tensors with data that the parts of a module store as constants.

    These are settings, see `settings_of`, and tables: masks, steps of a solver.
    """
    found = {}
    for path, part in module.named_modules():
        if not isinstance(part, torch.jit.ScriptModule):
            kept = {**vars(part), **part._buffers}
            found[path] = {name: value for name, value in kept.items() if _is_known(value)}
    return {path: own for path, own in found.items() if own}


def settings_of(kept: ConstantTensors) -> ConstantTensors:
    """Return the integers and flags among constant tensors."""
    found = {path: {n: v for n, v in own.items() if _is_setting(v)} for path, own in kept.items()}
    return {path: own for path, own in found.items() if own}


class KeepIntegerData(TorchFunctionMode):
    """Keeps the data of integers while a module is built without data."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and "device" not in kwargs and args and type(args[0]) is int:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class ConstantFolding(TorchFunctionMode):
    """Evaluates functions of known numbers, and traces all others.

    Args:
        module: the module that runs.
        kept: its constant tensors, restored while the mode is active, as a meta copy lost them.
        everywhere: whether numbers stay known after the module moves them to a device.
    """

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        kept: ConstantTensors | None = None,
        *,
        everywhere: bool = False,
    ) -> None:
        super().__init__()
        self._everywhere = everywhere
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._twins: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}
        self._kept = [] if module is None else _by_part(module, kept or {})
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def __enter__(self) -> ConstantFolding:
        for part, numbers in self._kept:
            self._before.append((dict(vars(part)), dict(part._buffers)))
            for name, value in numbers.items():
                part._buffers.pop(name, None)
                with _without_modes():  # a pass may modify it, as a counter
                    vars(part)[name] = value.clone()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for (part, numbers), (attributes, buffers) in zip(self._kept, self._before, strict=True):
            for name in numbers:
                vars(part).pop(name, None)
                vars(part).update({name: attributes[name]} if name in attributes else {})
            part._buffers.clear()
            part._buffers.update(buffers)
        self._before.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        given = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        if name == "__get__" or not (given or name in MAKERS):
            return func(*args, **kwargs)
        # Unknown values written into a known tensor make it unknown: later uses get a stand-in.
        unknown = next((tensor for tensor in given if not _is_known(tensor)), None)
        if unknown is not None and _is_known(given[0]) and _writes(name):
            self._forget(given[0], unknown.device)
        if self._written and any(id(tensor) in self._written for tensor in given):
            args, kwargs = pytree.tree_map(self._current, (args, kwargs))
            given = list(map(self._current, given))
        if all(map(_is_known, given)) and _are_plain(args, kwargs):
            placed = {key: value for key, value in kwargs.items() if key != "device"}
            stays = _without_devices(args) if self._everywhere else args
            with _without_modes():
                result = func(*stays, **placed)
            if all(map(_is_known, _tensors(result))):
                return result
        if name in SIZED:
            args = (*args[:1], *_as_sizes(args[1:]))
        return func(*self._with_constants(args, given), **self._with_constants(kwargs, given))

    def _with_constants(self, values: Any, given: list[torch.Tensor]) -> Any:
        """Return arguments with known numbers as constants on the device of the others."""
        device = next((tensor.device for tensor in given if not _is_known(tensor)), None)
        if device is None:
            return values
        values = pytree.tree_map(
            _as_sizes, values, is_leaf=lambda v: v is not values and _are_sizes(v)
        )
        return pytree.tree_map(lambda v: self._copy_to(v, device) if _is_known(v) else v, values)

    def _forget(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Mark a known tensor as unknown, because unknown values are written into it."""
        if id(tensor) not in self._written:
            made = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=device)
            self._written[id(tensor)] = tensor, made

    def _current(self, value: Any) -> Any:
        return self._written[id(value)][1] if id(value) in self._written else value

    def _copy_to(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        key = id(tensor), device
        if key not in self._twins:
            with _without_modes():
                self._twins[key] = tensor, tensor.to(device)
        return self._twins[key][1]


@contextmanager
def _without_modes() -> Iterator[None]:
    with ExitStack() as modes:
        modes.enter_context(disable_proxy_modes_tracing())
        modes.enter_context(unset_fake_temporarily())
        modes.enter_context(torch.device("cpu"))
        yield


def evaluate(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function on known numbers, outside of tracing."""
    with _without_modes():
        return func(*args, **kwargs)


def _writes(name: str) -> bool:
    """Return whether a function of this name modifies its first argument."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _is_known(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, FakeTensor | torch.nn.Parameter)
        and value.device.type == "cpu"
        and value.numel() <= MOST
    )


def _is_number(value: Any) -> bool:
    return _is_known(value) and bool(value.dim() == 0) and value.dtype in _WHOLE


def _is_setting(value: Any) -> bool:
    """Return whether a value is a number or flag stored as a tensor of one element."""
    one = _is_known(value) and value.numel() == 1 and value.dim() <= 1
    return one and value.dtype in (*_WHOLE, torch.bool)


def _are_sizes(values: Any) -> bool:
    """Return whether these are sizes, some of them tensors."""
    return (
        isinstance(values, list | tuple)
        and any(map(_is_number, values))
        and all(_is_number(v) or type(v) is int for v in values)
    )


def _as_sizes(values: Any) -> Any:
    if not _are_sizes(values):
        return values
    sizes = [int(v) for v in values]
    return tuple(sizes) if isinstance(values, tuple) else sizes


def _without_devices(args: tuple[Any, ...]) -> tuple[Any, ...]:
    here = torch.device("cpu")
    return tuple(here if isinstance(value, torch.device) else value for value in args)


def _by_part(module: torch.nn.Module, kept: ConstantTensors) -> list[tuple[torch.nn.Module, Any]]:
    return [(module.get_submodule(path), numbers) for path, numbers in kept.items()]


def _are_plain(args: Any, kwargs: Any) -> bool:
    leaves = pytree.tree_leaves((args, kwargs))
    return not any(isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool) for v in leaves)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
