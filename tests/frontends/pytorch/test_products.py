"""Products however they are spelled: einsum, recurrent cells and projections, vectors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dippm.model import frontends
from dippm.model.graph import ModelGraph, build


class Einsum(nn.Module):
    def __init__(self, equation: str, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.equation = equation
        self.others = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum(self.equation, x, *self.others)


class Pairs(nn.Module):
    """Every argument is an activation."""

    def __init__(self, equation: str, count: int) -> None:
        super().__init__()
        self.equation, self.count = equation, count

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum(self.equation, *[torch.relu(x) for _ in range(self.count)])


EINSUMS = {
    "a dense layer": (Einsum("bij,jk->bik", (4, 5)), (3, 4), ["dense"]),
    "an ellipsis": (Einsum("...i,ij->...j", (4, 6)), (3, 4), ["dense"]),
    "implicit result": (Einsum("bij,jk", (4, 5)), (3, 4), ["dense"]),
    "a weight turned": (Einsum("bij,kj->bik", (5, 4)), (3, 4), ["dense"]),
    "three operands": (Einsum("bij,jk,bkl->bil", (4, 5), (1, 5, 6)), (3, 4), None),
    "a diagonal": (Einsum("bij,jj->bi", (4, 4)), (3, 4), None),
    "an axis of one": (Einsum("bij,kj->bi", (7, 4)), (3, 4), None),
    "an outer product": (Einsum("bi,j->bij", (4,)), (3,), ["reshape", "multiply"]),
    "a bilinear form": (Einsum("bi,oij,j->bo", (5, 3, 4), (4,)), (3,), None),
    "two activations": (Pairs("bij,bkj->bik", 2), (3, 4), None),
    "heads": (Pairs("bqhd,bkhd->bhqk", 2), (3, 2, 4), None),
    "three activations": (Pairs("bij,bkj,bkl->bil", 3), (3, 4), None),
    "a sum": (Einsum("bij->b"), (3, 4), ["reduce_sum"]),
}


def graph_of(module: nn.Module, shape: tuple[int, ...]) -> ModelGraph:
    return build(frontends.load(module, shape, cache=False)).at_batch(2)


def counted(module: nn.Module, shape: tuple[int, ...]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.randn(2, *shape))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(("module", "shape", "ops"), EINSUMS.values(), ids=EINSUMS)
def test_any_equation_is_counted(
    module: nn.Module, shape: tuple[int, ...], ops: list[str] | None
) -> None:
    graph = graph_of(module, shape)
    assert graph.macs == counted(module, shape)
    assert not graph.unknown_ops
    assert ops is None or [node.op for node in graph.nodes] == ops


RECURRENT = {
    "projected": (nn.LSTM(16, 32, proj_size=8, batch_first=True), (12, 16), ["lstm"]),
    "projected, stacked": (nn.LSTM(16, 32, 2, proj_size=8, batch_first=True), (12, 16), None),
    "projected, both ways": (
        nn.LSTM(16, 32, 2, proj_size=8, batch_first=True, bidirectional=True), (12, 16), None,
    ),
    "LSTM cell": (nn.LSTMCell(16, 32), (16,), ["lstm"]),
    "GRU cell": (nn.GRUCell(16, 32), (16,), ["gru"]),
    "RNN cell": (nn.RNNCell(16, 32, nonlinearity="relu"), (16,), ["rnn"]),
}  # fmt: skip


@pytest.mark.parametrize(("module", "shape", "ops"), RECURRENT.values(), ids=RECURRENT)
def test_recurrent_layers_and_cells_are_counted(
    module: nn.Module, shape: tuple[int, ...], ops: list[str] | None
) -> None:
    graph = graph_of(module, shape)
    assert graph.macs == counted(module, shape)
    assert not graph.unknown_ops
    assert ops is None or [node.op for node in graph.nodes] == ops


def test_a_bilinear_layer_is_a_dense_one_and_a_product_for_each_sample() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(8, 8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x, x)

    graph = graph_of(Model(), (8,))
    assert graph.macs == 2 * (8 * 5 * 8 + 5 * 8)
    assert [node.op for node in graph.nodes if node.macs] == ["dense", "batch_matmul"]
