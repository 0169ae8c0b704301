"""Recurrent layers stay whole while `torch.export` traces: shapes in one step, not one per step.

Tensors without data run a recurrent layer as torch decomposes it, some dozens of operators for
each step of each layer, only to learn the shape of its result: half a minute for six layers of
512 steps. Its shape follows from its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_ATEN = torch.ops.aten
_LAYERS = (
    _ATEN.lstm.input,
    _ATEN.gru.input,
    _ATEN.rnn_tanh.input,
    _ATEN.rnn_relu.input,
    _ATEN.lstm.data,
    _ATEN.gru.data,
    _ATEN.rnn_tanh.data,
    _ATEN.rnn_relu.data,
)


@contextmanager
def whole_recurrent_layers() -> Iterator[None]:
    """Within, a recurrent layer only makes results of the right shape, without any data."""
    kept: list[tuple[Any, dict[Any, Callable[..., Any]]]] = []
    for layer in _LAYERS:
        kept.append((layer, dict(layer.py_kernels)))
        for key in layer.py_kernels:
            layer.py_kernels[key] = partial(_shapes, layer)
        layer._dispatch_cache.clear()
    try:
        yield
    finally:
        for layer, kernels in kept:
            layer.py_kernels.update(kernels)
            layer._dispatch_cache.clear()


def _shapes(layer: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    names = [argument.name for argument in layer._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    source, states = given["data" if "data" in given else "input"], given["hx"]
    states = states if isinstance(states, list | tuple) else [states]
    width = states[0].shape[-1] * (2 if given["bidirectional"] else 1)
    result = source.new_empty((*source.shape[:-1], width))
    return (result, *(state.new_empty(state.shape) for state in states))
