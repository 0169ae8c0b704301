"""Recurrent layers as single operators during export, and packed sequences as padded ones.

On tensors without data torch decomposes a recurrent layer into dozens of operators per step and
layer, only to infer the shape of its result: half a minute for six layers of 512 steps. The shape
follows from its arguments.

The lengths in a packed sequence are data. It is read as the padded sequence from which it was
packed, with all steps: the maximum cost of the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.rnn import PackedSequence

from dippm.model.frontends.torch.constant_folding import evaluate

PACKED = (
    "packed sequences were read as the padded ones that they are packed from, as if all were as "
    "long as the longest: their lengths are data"
)

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
    """Make recurrent layers return results of the right shape without data, in the block."""
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


class PaddedSequences:
    """Leaves sequences padded, (batch, steps, width), where a module packs them.

    Attributes:
        seen: whether the module packed a sequence.
    """

    def __init__(self) -> None:
        self.seen = False

    @contextmanager
    def instead_of_packed(self) -> Iterator[None]:
        """Make packing keep a sequence padded, and recurrent layers accept it, in the block."""
        layers = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
        before = {layer: layer.forward for layer in layers}
        pack = partial(self._pack, torch._VF._pack_padded_sequence)
        pad = partial(_pad, torch._VF._pad_packed_sequence)
        with (
            patch.object(torch._VF, "_pack_padded_sequence", pack),
            patch.object(torch._VF, "_pad_packed_sequence", pad),
        ):
            for layer, forward in before.items():
                layer.forward = _forward_of(forward)  # type: ignore[method-assign]
            try:
                yield
            finally:
                for layer, forward in before.items():
                    layer.forward = forward  # type: ignore[method-assign]

    def _pack(
        self, before: Callable[..., Any], source: Any, lengths: Any, batch_first: bool
    ) -> tuple[Any, Any]:
        if not (source.is_meta or isinstance(source, FakeTensor)):  # from another thread, with data
            return before(source, lengths, batch_first)  # type: ignore[no-any-return]
        self.seen = True
        data = source if batch_first else source.transpose(0, 1)
        batch, steps = data.shape[:2]
        return data, evaluate(torch.full, ((steps,), batch), {"dtype": torch.int64})


def _pad(
    before: Callable[..., Any],
    data: Any,
    batch_sizes: Any,
    batch_first: bool,
    value: float,
    length: int,
) -> tuple[Any, Any]:
    """Return a sequence that was left padded, and its lengths."""
    if data.dim() < 3:
        return before(data, batch_sizes, batch_first, value, length)  # type: ignore[no-any-return]
    lengths = data.new_full((data.shape[0],), data.shape[1], dtype=torch.int64)
    if length > data.shape[1]:
        data = torch.nn.functional.pad(data, (0, 0, 0, length - data.shape[1]), value=value)
    return (data if batch_first else data.transpose(0, 1)), lengths


def _forward_of(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's forward that also accepts and returns sequences left padded."""

    def padded(self: Any, sequence: Any, hx: Any = None) -> Any:
        if not isinstance(sequence, PackedSequence) or sequence.data.dim() < 3:
            return forward(self, sequence, hx)
        first, self.batch_first = self.batch_first, True
        try:
            result, states = forward(self, sequence.data, hx)
        finally:
            self.batch_first = first
        return sequence._replace(data=result), states

    return padded
