"""Branches and loops that are operators of torch: their work is in the graph, and said so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

from dippm.model import frontends
from dippm.model.frontends import pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.graph import ModelGraph, build
from tests.samples import sampled

ONE = 32 * 32
"""MACs of one layer over one row."""


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(32, 32), nn.Linear(32, 32)

    def twice(self, x: Tensor) -> Tensor:
        return self.one(self.one(x))


class Branch(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda x: self.one(x), self.twice, (x,))
        return self.other(x) + y


class Nested(Layers):
    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.mean() > 1, lambda x: self.other(self.twice(x)), torch.relu, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: self.one(x) * torch.tensor(2.0), (x,))


class Steps(Layers):
    def forward(self, x: Tensor) -> Tensor:
        def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            state = torch.tanh(self.one(state) + row)
            return state, state * 2

        last, rows = scan(step, torch.zeros_like(x[:, 0]), x, dim=1)
        return rows.sum(1) + last


class Rows(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return mapped(lambda row: self.one(row), x.transpose(0, 1))


class Rounds(Layers):
    def forward(self, x: Tensor) -> Any:
        return while_loop(lambda x: x.sum() < 5, lambda x: (self.twice(x),), (x,))[0]


class Saved(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.twice, x, use_reentrant=False)


CASES = {
    "branch": (Branch(), "32", 3 * ONE, "branch"),
    "nested": (Nested(), "32", 3 * ONE, "branch"),
    "steps": (Steps(), "7,32", 7 * ONE, ""),
    "rows": (Rows(), "5,32", 5 * ONE, ""),
    "rounds": (Rounds(), "32", 2 * ONE, "one round"),
    "saved": (Saved(), "32", 2 * ONE, ""),
}


def macs(graph: ModelGraph) -> int:
    return graph.at_batch(1).macs if graph.batch_is_symbolic else graph.macs


@pytest.mark.parametrize("name", sampled(CASES, pytest.mark.nightly(part="frontends"), every=3))
def test_the_work_of_branches_and_loops_is_read(name):
    module, given, expected, words = CASES[name]
    graph = build(pytorch.convert_module(module.eval(), InputSpec.parse(given)))
    assert macs(graph) == expected
    assert not graph.unknown_ops
    if words:
        assert any(words in note for note in graph.notes)


def test_programs_in_files_are_read_alike(tmp_path):
    module, given, expected, words = CASES["branch"]
    program = torch.export.export(module.eval(), (torch.zeros(2, 32),))
    torch.export.save(program, tmp_path / "branch.pt2")
    for source in (module, tmp_path / "branch.pt2"):
        graph = build(frontends.load(source, given, trust=True))
        assert macs(graph) == expected
        assert any("costliest" in note for note in graph.notes), words


def test_a_loop_that_is_too_long_is_named(monkeypatch):
    monkeypatch.setattr("dippm.model.frontends.torch.higher_order_operators.MAX_STEPS", 4)
    module, given, *_ = CASES["rows"]
    graph = build(pytorch.convert_module(module.eval(), InputSpec.parse(given)))
    assert list(graph.unknown_ops) == ["aten.map_impl"]
    assert any("not counted" in note for note in graph.notes)
