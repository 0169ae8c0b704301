"""Mixtures of experts in a Python loop: all choices are counted, spread over the experts evenly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import dippm
from dippm.errors import ConversionError
from dippm.model.graph import ModelGraph
from tests.samples import sampled

WIDTH, INNER, EXPERTS, CHOICES = 8, 16, 4, 2


class Mixture(nn.Module):
    """What the forms of the loop share.

    Args:
        experts: how many.
    """

    def __init__(self, experts: int = EXPERTS) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        weights, chosen = torch.topk(self.gate(rows).softmax(-1), CHOICES, dim=-1)
        return self.mixed(rows, weights, chosen).view(x.shape)

    def mixed(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        raise NotImplementedError


class ByWhere(Mixture):
    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, choice = torch.where(chosen == i)
            if row.numel() == 0:
                continue
            out[row] += weights[row, choice, None] * expert(x[row])
        return out


class ByIndexAdd(Mixture):
    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, choice = (chosen == i).nonzero(as_tuple=True)
            out.index_add_(0, row, expert(x[row]) * weights[row, choice].unsqueeze(-1))
        return out


class ByMask(Mixture):
    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            hit = chosen == i
            rows = hit.any(dim=-1)
            if rows.any():
                out[rows] += expert(x[rows]) * (weights * hit).sum(-1)[rows, None]
        return out


class ByFlatRows(Mixture):
    """Tokens are repeated once for each choice, as in early code of Mixtral."""

    def mixed(self, x, weights, chosen):
        repeated, flat = x.repeat_interleave(CHOICES, dim=0), chosen.view(-1)
        out = torch.empty_like(repeated)
        for i, expert in enumerate(self.experts):
            out[flat == i] = expert(repeated[flat == i])
        return (out.view(*weights.shape, -1) * weights.unsqueeze(-1)).sum(dim=1)


class ByOneHot(Mixture):
    """As transformers has Mixtral: only experts that are hit are looped over."""

    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        mask = functional.one_hot(chosen, num_classes=len(self.experts)).permute(2, 1, 0)
        hits = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert in hits:
            choice, row = torch.where(mask[expert].squeeze(0))
            current = x[None, row].reshape(-1, WIDTH)
            current = self.experts[expert](current) * weights[row, choice, None]
            out.index_add_(0, row, current.to(x.dtype))
        return out


class ByOneHotOfAll(ByOneHot):
    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        mask = functional.one_hot(chosen, num_classes=len(self.experts)).permute(2, 1, 0)
        for i in range(len(self.experts)):
            choice, row = torch.where(mask[i])
            out.index_add_(0, row, self.experts[i](x[row]) * weights[row, choice, None])
        return out


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(ByWhere(), ByOneHot())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


FORMS = (ByWhere, ByIndexAdd, ByMask, ByFlatRows, ByOneHot, ByOneHotOfAll)


def read(module: nn.Module, shape: str) -> ModelGraph:
    return dippm.read_graph(module.eval(), input=shape)


def macs(tokens: int, experts: int = EXPERTS) -> int:
    return tokens * WIDTH * experts + tokens * CHOICES * 2 * WIDTH * INNER


@pytest.mark.parametrize("form", sampled(FORMS, pytest.mark.nightly(part="frontends"), every=3))
def test_every_choice_is_counted_once(form: type[Mixture]) -> None:
    graph = read(form(), "6,8")
    assert [graph.at_batch(b).macs for b in (1, 5)] == [macs(6), macs(30)]
    (note,) = graph.notes
    assert "4 experts" in note
    assert "12 choices of a sample" in note


def test_uneven_shares_add_up_and_layers_are_told_apart() -> None:
    graph = read(Two(), "5,8")
    assert graph.at_batch(1).macs == 2 * macs(5)
    assert graph.at_batch(3).macs == 2 * macs(15)
    assert dippm.predict(Two(), input="5,8", device="A100", batch=4).latency_ms > 0


def test_fewer_choices_than_experts_are_those_of_one_batch() -> None:
    """Which experts are idle depends on the batch, so no marker stands for it."""
    module = ByWhere(experts=8)
    graph = read(module, "1,8")
    assert not graph.batch_is_symbolic
    assert graph.macs == macs(1, 8)
    assert dippm.predict(module, input="fixed:3,1,8", device="A100").latency_ms > 0
    assert read(module, "fixed:3,1,8").macs == macs(3, 8)


class Halves(Mixture):
    """Selects by a value, not by the number of an expert."""

    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row = torch.where(weights[:, 0] > i / 8)[0]
            out.index_add_(0, row, expert(x[row]))
        return out


class Counted(Mixture):
    """Reads how many tokens each expert gets, as DeepSeek's first code does."""

    def mixed(self, x, weights, chosen):
        counts = torch.bincount(chosen.view(-1), minlength=len(self.experts))
        order = chosen.view(-1).argsort()
        rows = x[order // CHOICES]
        parts = rows.split(counts.tolist())
        return torch.cat([e(part) for e, part in zip(self.experts, parts, strict=True)])[: len(x)]


class Once(Mixture):
    """One expert alone is no mixture: nothing tells its share."""

    def mixed(self, x, weights, chosen):
        out = torch.zeros_like(x)
        row = torch.where(chosen == 0)[0]
        return out.index_add(0, row, self.experts[0](x[row]))


@pytest.mark.parametrize(
    ("form", "line"),
    [
        (Halves, "row = torch.where(weights[:, 0] > i / 8)[0]"),
        (Counted, "parts = rows.split(counts.tolist())"),
        (Once, "row = torch.where(chosen == 0)[0]"),
    ],
)
def test_other_work_that_depends_on_data_is_refused_with_its_line(form, line) -> None:
    with pytest.raises(ConversionError) as caught:
        read(form(), "6,8")
    assert line in caught.value.message
    assert caught.value.hint


class Placed(nn.Module):
    """Moves each expert to where its tokens are, as code for several devices does."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([expert.to(x.device)(x) for expert in self.experts])


def test_experts_that_are_moved_stay_what_they_are() -> None:
    module = Placed()
    assert read(module, "8").at_batch(3).macs == 3 * 2 * WIDTH * WIDTH
    assert module.to(torch.float64).experts[0].weight.dtype is torch.float64
