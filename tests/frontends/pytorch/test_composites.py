"""Operators that torch composes of others, such as `hstack`: read by their parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dippm.model.frontends import load
from dippm.model.frontends.frontend import InputSpec
from dippm.model.graph import build

CALLS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "view_as": (lambda x: x.flatten(1).view_as(x) * 2, "multiply"),
    "hstack": (lambda x: torch.hstack([x, x]), "concat"),
    "hsplit, one part read": (lambda x: x.hsplit(2)[1], "slice"),
    "ravel": (lambda x: x.ravel().relu().view(x.shape), "relu"),
    "vecdot": (lambda x: torch.linalg.vecdot(x, x), "reduce_sum"),
    "gradient": (lambda x: torch.gradient(x, dim=1)[0], "subtract"),
    "in a module": (nn.Sequential(nn.Flatten(), nn.ReLU()), "relu"),
    "nearest-exact": (
        lambda x: nn.functional.interpolate(x, scale_factor=2, mode="nearest-exact"), "resize",
    ),
    "rand_like": (lambda x: torch.rand_like(x) + x, "random"),
    "deg2rad": (torch.deg2rad, "multiply"),
    "ldexp": (lambda x: torch.ldexp(x, x.int()), "power"),
    "block_diag": (lambda x: torch.block_diag(*x.unbind(1)), "concat"),
    "pdist": (lambda x: nn.functional.pdist(x[0]), "distance"),
    "segment_reduce": (
        lambda x: torch.segment_reduce(
            x, "sum", lengths=torch.full_like(x[:, :2, 0], 4, dtype=torch.long), axis=1
        ),
        "scatter",
    ),
    "nll_loss": (lambda x: nn.functional.nll_loss(x.flatten(1), x[:, 0, 0].long()), "gather"),
    "cross_entropy": (
        lambda x: nn.functional.cross_entropy(x.flatten(1), x[:, 0, 0].long()), "log_softmax",
    ),
}  # fmt: skip


class Layer(nn.Module):
    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(16, 16), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.layer(x))


@pytest.mark.parametrize("name", CALLS)
def test_a_composite_operator_is_read_by_its_parts(name: str) -> None:
    then, expected = CALLS[name]
    module = Layer(then)
    graph = build(load(module, inputs=InputSpec.parse("8,16"))).at_batch(2)
    assert not graph.unknown_ops
    assert expected in {node.op for node in graph.nodes}
    assert [spec.shape for spec in graph.outputs] == [tuple(module(torch.rand(2, 8, 16)).shape)]


def _margin_loss(x: Tensor) -> Tensor:
    return nn.functional.multi_margin_loss(x.flatten(1), x[:, 0, 0].long())


def test_a_composite_of_what_nobody_reads_keeps_its_name() -> None:
    graph = build(load(Layer(_margin_loss), inputs=InputSpec.parse("8,16")))
    assert dict(graph.unknown_ops) == {"aten.multi_margin_loss": 1}
