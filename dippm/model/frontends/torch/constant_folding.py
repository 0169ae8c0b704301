"""Numbers that a model computes from numbers alone, worked out while it is exported.

A packed vision tower takes the rows and columns of each image as numbers, and splits, sorts and
masks by what it computes from them. None of that depends on data, but the exporter takes every
tensor for unknown. `KnownNumbers` computes what comes from numbers alone, so that reading it gives
numbers; where it meets tensors without data it is a constant. Numbers that a module keeps as
tensors, such as the stride of a layer of an audio codec, are known as well.
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
"""Elements of a tensor that is worked out."""

MAKERS = frozenset(
    """
    arange as_tensor empty eye full linspace ones tensor tril_indices triu_indices zeros
    """.split()
)


SIZED = frozenset("expand narrow repeat reshape tile view".split())
"""Methods whose arguments are sizes, one by one."""

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Kept = Mapping[str, Mapping[str, torch.Tensor]]
"""Numbers by path of a part and by attribute."""


def kept_numbers(module: torch.nn.Module) -> Kept:
    """Return the numbers with data that the parts of a module keep as tensors.

    They are settings, see `settings_of`, and tables: masks, steps of a solver.
    """
    found = {}
    for path, part in module.named_modules():
        if not isinstance(part, torch.jit.ScriptModule):
            kept = {**vars(part), **part._buffers}
            found[path] = {name: value for name, value in kept.items() if _is_known(value)}
    return {path: own for path, own in found.items() if own}


def settings_of(kept: Kept) -> Kept:
    """Return the whole numbers and flags among what a module keeps."""
    found = {path: {n: v for n, v in own.items() if _is_setting(v)} for path, own in kept.items()}
    return {path: own for path, own in found.items() if own}


class BuildsNumbers(TorchFunctionMode):
    """Keeps the data of whole numbers while a module is built without data."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and "device" not in kwargs and args and type(args[0]) is int:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class KnownNumbers(TorchFunctionMode):
    """Computes on numbers that are known, and traces everything else.

    Args:
        module: what runs.
        kept: numbers that it keeps, for as long as the mode is on; a copy without data lost them.
        everywhere: whether numbers stay known that the module moves to a device.
    """

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        kept: Kept | None = None,
        *,
        everywhere: bool = False,
    ) -> None:
        super().__init__()
        self._everywhere = everywhere
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._twins: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}
        self._kept = [] if module is None else _by_part(module, kept or {})
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def __enter__(self) -> KnownNumbers:
        for part, numbers in self._kept:
            self._before.append((dict(vars(part)), dict(part._buffers)))
            for name, value in numbers.items():
                part._buffers.pop(name, None)
                with _for_real():  # a pass may count in it
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
        unknown = next((tensor for tensor in given if not _is_known(tensor)), None)
        if unknown is not None and _is_known(given[0]) and _writes(name):
            self._forget(given[0], unknown.device)
        if self._written and any(id(tensor) in self._written for tensor in given):
            args, kwargs = pytree.tree_map(self._now, (args, kwargs))
            given = list(map(self._now, given))
        if all(map(_is_known, given)) and _are_plain(args, kwargs):
            placed = {key: value for key, value in kwargs.items() if key != "device"}
            stays = _without_devices(args) if self._everywhere else args
            with _for_real():
                result = func(*stays, **placed)
            if all(map(_is_known, _tensors(result))):
                return result
        if name in SIZED:
            args = (*args[:1], *_as_sizes(args[1:]))
        return func(*self._met(args, given), **self._met(kwargs, given))

    def _met(self, values: Any, given: list[torch.Tensor]) -> Any:
        """Return arguments with known numbers where the others are."""
        device = next((tensor.device for tensor in given if not _is_known(tensor)), None)
        if device is None:
            return values
        values = pytree.tree_map(
            _as_sizes, values, is_leaf=lambda v: v is not values and _are_sizes(v)
        )
        return pytree.tree_map(lambda v: self._twin(v, device) if _is_known(v) else v, values)

    def _forget(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Take numbers for unknown that something unknown is written into."""
        if id(tensor) not in self._written:
            made = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=device)
            self._written[id(tensor)] = tensor, made

    def _now(self, value: Any) -> Any:
        return self._written[id(value)][1] if id(value) in self._written else value

    def _twin(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        key = id(tensor), device
        if key not in self._twins:
            with _for_real():
                self._twins[key] = tensor, tensor.to(device)
        return self._twins[key][1]


@contextmanager
def _for_real() -> Iterator[None]:
    with ExitStack() as modes:
        modes.enter_context(disable_proxy_modes_tracing())
        modes.enter_context(unset_fake_temporarily())
        modes.enter_context(torch.device("cpu"))
        yield


def worked_out(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function on numbers that are known, whatever is traced meanwhile."""
    with _for_real():
        return func(*args, **kwargs)


def _writes(name: str) -> bool:
    """Return whether a function of this name changes its first argument."""
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
    """Tell a number or a flag that a module keeps as a tensor of one element."""
    one = _is_known(value) and value.numel() == 1 and value.dim() <= 1
    return one and value.dtype in (*_WHOLE, torch.bool)


def _are_sizes(values: Any) -> bool:
    """Return whether these are sizes of which some are tensors."""
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


def _by_part(module: torch.nn.Module, kept: Kept) -> list[tuple[torch.nn.Module, Any]]:
    return [(module.get_submodule(path), numbers) for path, numbers in kept.items()]


def _are_plain(args: Any, kwargs: Any) -> bool:
    leaves = pytree.tree_leaves((args, kwargs))
    return not any(isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool) for v in leaves)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
