"""What a model reads out of tensors: numbers that are known, loops that are not, their lines."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import dippm
from dippm.errors import ConversionError
from dippm.model.graph import ModelGraph


def read(module: nn.Module, shape: str) -> ModelGraph:
    return dippm.read_graph(module.eval(), input=shape)


class Filters(nn.Module):
    """Fixed filters at several dilations, as MiniRocket has them, and a flag that says if it fits.

    Args:
        flag: shape of the flag.
        layers: whether layers stand before and after, so that a parameter is used first.
    """

    def __init__(self, flag: tuple[int, ...], *, layers: bool) -> None:
        super().__init__()
        self.register_buffer("filters", torch.rand(84, 1, 9))
        self.register_buffer("fitted", torch.zeros(flag, dtype=torch.bool))
        self.first = nn.Conv1d(1, 1, 3, padding=1) if layers else nn.Identity()
        self.last = nn.Linear(84 * 5, 10) if layers else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x, found = self.first(x), []
        for i in range(5):
            dilation = 2**i
            y = nn.functional.conv1d(x, self.filters, padding=4 * dilation, dilation=dilation)
            bias = 0.5 if self.fitted else torch.quantile(y.flatten(1), 0.5, dim=1)[:, None, None]
            found.append((y > bias).float().mean(-1))
        return self.last(torch.cat(found, 1))


@pytest.mark.parametrize("flag", [(), (1,)])
@pytest.mark.parametrize("layers", [False, True])
def test_filters_of_buffers_are_all_read(flag: tuple[int, ...], layers: bool) -> None:
    graph = read(Filters(flag, layers=layers), "1,128")
    assert graph.at_batch(3).macs == 3 * (5 * 84 * 128 * 9 + layers * (128 * 3 + 84 * 5 * 10))
    assert not graph.notes


class Fixed(nn.Module):
    """A fixed point by layers that were all used before."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.start = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        z = self.start(self.step(x))
        while (z - self.step(z)).abs().max() > 1e-3:
            z = torch.tanh(self.step(z) + x)
        return z


class Bounded(Fixed):
    def forward(self, x: Tensor) -> Tensor:
        z = self.start(self.step(x))
        for _ in range(10):
            y = torch.tanh(self.step(z) + x)
            if (y - z).norm() < 1e-3:
                break
            z = y
        return z


class OfBuffer(Fixed):
    """The loop multiplies by a buffer, which no parameter stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        z = self.start(self.step(x))
        if bool(z.sum() > 0):
            return z @ self.table.t()
        return z


class Shrinks(Fixed):
    """Rows that pass go through a layer again: an upper bound of their number is no bound here."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.start(self.step(x))
        for _ in range(3):
            z = self.step(z[z.sum(-1) > 0])
        return z


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (Fixed(), "while (z - self.step(z)).abs().max() > 1e-3:"),
        (Bounded(), "if (y - z).norm() < 1e-3:"),
        (OfBuffer(), "if bool(z.sum() > 0):"),
        (Shrinks(), "z = self.step(z[z.sum(-1) > 0])"),
    ],
)
def test_layers_behind_a_read_are_not_left_out_in_silence(module: nn.Module, line: str) -> None:
    with pytest.raises(ConversionError) as caught:
        read(module, "16")
    assert "test_data_dependence.py, line " in caught.value.message
    assert line in caught.value.message
    assert caught.value.hint


class Masked(nn.Module):
    """A decoder that looks whether its mask is the causal one, which has nothing of the batch."""

    def __init__(self, kind: str, *, made: bool, batch_first: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=batch_first)
        self.layers = (
            nn.TransformerDecoder(layer, 1)
            if kind == "decoder"
            else nn.Transformer(16, 2, 1, 1, 32, batch_first=batch_first)
        )
        mask = nn.Transformer.generate_square_subsequent_mask(6)
        self.register_buffer("mask", None if made else mask)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = self.mask
        if mask is None:
            make = nn.Transformer.generate_square_subsequent_mask
            mask = make(6, device=source.device)
        return self.layers(target, source, tgt_mask=mask)


@pytest.mark.parametrize("kind", ["decoder", "transformer"])
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_masks_do_not_stop_the_batch(kind: str, made: bool, batch_first: bool) -> None:
    masked = read(Masked(kind, made=made, batch_first=batch_first), "source=6,16;target=6,16")
    assert masked.batch_is_symbolic
    assert masked.at_batch(4).macs == 4 * masked.at_batch(1).macs
    products = 2 * 4 * 6 * 16 * 16 + 4 * 6 * 6 * 16 + 2 * 6 * 16 * 32
    encoder = 4 * 6 * 16 * 16 + 2 * 6 * 6 * 16 + 2 * 6 * 16 * 32
    assert masked.at_batch(1).macs == products + (kind == "transformer") * encoder


class Solver(nn.Module):
    """A Runge-Kutta method of fourth order, whose steps are numbers that it looks at."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.slope = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.where = where
        self.register_buffer("steps", torch.linspace(0, 1, 5) if where == "buffer" else None)
        self.kept = torch.linspace(0, 1, 5) if where == "attribute" else None

    def forward(self, y: Tensor) -> Tensor:
        steps = self.steps if self.where == "buffer" else self.kept
        if steps is None:
            steps = torch.linspace(0, 1, 5, device=y.device)
        if not (steps[1:] > steps[:-1]).all():
            raise ValueError("steps must increase")
        for start, end in pairwise(steps):
            width = (end - start).to(y)
            a = self.slope(y)
            b = self.slope(y + width * a / 2)
            c = self.slope(y + width * b / 2)
            y = y + width * (a + 2 * b + 2 * c + self.slope(y + width * c)) / 6
        return y


@pytest.mark.parametrize("where", ["buffer", "attribute", "made in forward"])
def test_steps_of_a_solver_are_numbers_at_any_batch(where: str) -> None:
    graph = read(Solver(where), "8")
    assert graph.batch_is_symbolic
    assert graph.at_batch(5).macs == 5 * 4 * 4 * 2 * 8 * 16


class Windows(nn.Module):
    """Windows whose number is computed as a tensor, as Longformer's is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        count = torch.div(x.shape[1], 4, rounding_mode="trunc")
        return self.layer(x).view(x.shape[0], count, 4, 16).amax(2)


def test_a_number_computed_as_a_tensor_is_known() -> None:
    graph = read(Windows(), "12,16").at_batch(2)
    assert [spec.shape for spec in graph.outputs] == [(2, 3, 16)]
