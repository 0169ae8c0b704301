"""Packed sequences are read as the padded ones that they are packed from, and that is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
)

import dippm
from dippm.errors import ConversionError
from tests.samples import sampled

STEPS, WIDTH, HIDDEN = 6, 8, 16


class Reader(nn.Module):
    """Packs, runs a recurrent layer, and pads again.

    Args:
        layer: kind of the recurrent layer, two directions of it.
        batch_first: where the batch is.
        settings: of the packing.
    """

    def __init__(self, layer: type[nn.RNNBase], *, batch_first: bool, **settings: bool) -> None:
        super().__init__()
        self.layer = layer(WIDTH, HIDDEN, batch_first=batch_first, bidirectional=True)
        self.out, self.first, self.settings = nn.Linear(2 * HIDDEN, 4), batch_first, settings

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=self.first, **self.settings)
        packed = PackedSequence(
            torch.tanh(packed.data),
            packed.batch_sizes,
            packed.sorted_indices,
            packed.unsorted_indices,
        )
        result, _ = pad_packed_sequence(
            self.layer(packed)[0], batch_first=self.first, total_length=STEPS + 2
        )
        return self.out(result)


class States(nn.Module):
    """Only the last state is used, and lengths are numbers of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(WIDTH, HIDDEN, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, [STEPS] * len(x), batch_first=True)
        return self.layer(packed)[1][0][-1]


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(WIDTH, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        packed = pack_sequence([x[:, 0], x[:2, 1]])
        return pad_packed_sequence(self.layer(packed)[0])[0]


GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}


@pytest.mark.parametrize("layer", sampled(GATES, pytest.mark.nightly(part="frontends")))
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences_cost_what_padded_ones_do(layer, enforce_sorted: bool) -> None:
    for first, shape in ((True, "N,6,8"), (False, "6,N,8")):
        module = Reader(layer, batch_first=first, enforce_sorted=enforce_sorted)
        graph = dippm.read_graph(module.eval(), input=f"x={shape};lengths=()")
        step = 2 * GATES[layer] * HIDDEN * (WIDTH + HIDDEN)
        macs = STEPS * step + (STEPS + 2) * 2 * HIDDEN * 4
        assert graph.batch_is_symbolic
        assert [graph.at_batch(b).macs for b in (1, 5)] == [macs, 5 * macs]
        assert any("packed sequences were read as the padded ones" in n for n in graph.notes)


def test_states_and_lists_are_read_alike() -> None:
    step = HIDDEN * (WIDTH + HIDDEN)
    assert dippm.read_graph(States().eval(), input="6,8").at_batch(3).macs == 3 * STEPS * 4 * step
    graph = dippm.read_graph(Lists().eval(), input="x=fixed:6,2,8")
    assert graph.macs == 2 * STEPS * 3 * step


def test_sequences_with_data_are_packed_as_ever() -> None:
    module = Reader(nn.LSTM, batch_first=True, enforce_sorted=False).eval()
    x, lengths = torch.rand(2, STEPS, WIDTH), torch.tensor([3, 6])
    before = module(x, lengths)
    dippm.read_graph(module, input="x=6,8;lengths=()")
    assert torch.equal(module(x, lengths), before)
    assert nn.LSTM.forward.__module__ == "torch.nn.modules.rnn"


class Nested(nn.Module):
    """Sequences of several lengths in one tensor, made in one of the ways that torch has."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(16, 16), way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "strided":
            rows = torch.nested.nested_tensor([x[0], x[0, :3]])
        elif self.way == "jagged":
            rows = torch.nested.as_nested_tensor(list(x), layout=torch.jagged)
        else:
            ends = torch.tensor([0, 3, 12])
            rows = torch.nested.nested_tensor_from_jagged(x.reshape(-1, 16), ends)
        return torch.nested.to_padded_tensor(self.layer(rows), 0.0)


def test_nested_tensors_are_refused_with_their_line_and_the_way_out() -> None:
    for way in ("strided", "jagged", "offsets"):
        line = r"test_packed_sequences\.py, line \d+: rows = torch\.nested\."
        with pytest.raises(ConversionError, match=line) as caught:
            dippm.read_graph(Nested(way).eval(), input="12,16")
        assert "padded tensor and a mask" in caught.value.hint, way
