"""Numbers that a model computes from numbers alone, worked out while it is exported.

A packed vision tower takes the rows and columns of each image as numbers, and splits, sorts and
masks by what it computes from them. None of that depends on data, but the exporter takes every
tensor for unknown. `KnownNumbers` computes what comes from numbers alone, so that reading it gives
numbers; where it meets tensors without data it is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class KnownNumbers(TorchFunctionMode):
    """Computes on numbers that are known, and traces everything else."""

    def __init__(self) -> None:
        super().__init__()
        self._twins: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        given = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        if name == "__get__" or not (given or name in MAKERS):
            return func(*args, **kwargs)
        if all(map(_is_known, given)) and _are_plain(args, kwargs):
            placed = {key: value for key, value in kwargs.items() if key != "device"}
            with _for_real():
                result = func(*args, **placed)
            if all(map(_is_known, _tensors(result))):
                return result
        return func(*self._met(args, given), **self._met(kwargs, given))

    def _met(self, values: Any, given: list[torch.Tensor]) -> Any:
        """Return arguments with known numbers where the others are."""
        device = next((tensor.device for tensor in given if not _is_known(tensor)), None)
        if device is None:
            return values
        return pytree.tree_map(lambda v: self._twin(v, device) if _is_known(v) else v, values)

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


def _is_known(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, FakeTensor | torch.nn.Parameter)
        and value.device.type == "cpu"
        and value.numel() <= MOST
    )


def _are_plain(args: Any, kwargs: Any) -> bool:
    leaves = pytree.tree_leaves((args, kwargs))
    return not any(isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool) for v in leaves)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
