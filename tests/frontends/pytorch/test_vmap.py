"""`torch.vmap`: every slice is counted, whatever is mapped."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.func import functional_call, stack_module_state, vmap

import dippm
from dippm.errors import ConversionError
from tests.samples import sampled


class OverWeights(nn.Module):
    """One layer for each of several weights, along an axis of them."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        sizes = [16, 8]
        sizes.insert(axis, 5)
        self.axis, self.w = axis, nn.Parameter(torch.rand(sizes))

    def forward(self, x: Tensor) -> Tensor:
        return vmap(lambda w: torch.relu(x @ w), in_dims=self.axis)(self.w)


class Ensemble(nn.Module):
    """Members by `functional_call`, as the tutorial of model ensembling has them."""

    def __init__(self, *, stacked_before: bool) -> None:
        super().__init__()
        members = [
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
            for _ in range(6)
        ]
        self.base = copy.deepcopy(members[0]).to("meta")
        self.members = nn.ModuleList([] if stacked_before else members)
        stacked, _ = stack_module_state(members)
        self.names = list(stacked) if stacked_before else []
        self.stacked = nn.ParameterList(stacked[name].detach() for name in self.names)

    def forward(self, x: Tensor) -> Tensor:
        if self.names:
            parameters = dict(zip(self.names, self.stacked, strict=True))
        else:
            parameters, _ = stack_module_state(list(self.members))
        run = lambda p, x: functional_call(self.base, p, (x,))  # noqa: E731
        return vmap(run, in_dims=(0, None))(parameters, x).mean(0)


class OverSamples(nn.Module):
    """A layer, and attention, that are written for one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(16, 16), nn.Conv1d(7, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        def one(y: Tensor) -> Tensor:
            heads = self.layer(y).view(7, 2, 8).transpose(0, 1)
            y = nn.functional.scaled_dot_product_attention(heads, heads, heads)
            return self.out(y.transpose(0, 1).reshape(7, 16))

        return vmap(one)(x)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(16, 5, 8))

    def forward(self, x: Tensor) -> Tensor:
        return vmap(lambda row: vmap(lambda w: row @ w, in_dims=1)(self.w), chunk_size=None)(x)


class Scans(nn.Module):
    """Positions of tokens by a scan over them, which maps integers; features by one, too."""

    def __init__(self, mode: str = "generic") -> None:
        super().__init__()
        self.mode, self.table, self.layer = mode, nn.Embedding(100, 16), nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        counts = associative_scan(torch.add, (ids > 0).long(), 1, combine_mode="generic")
        x = self.layer(self.table(counts))
        return associative_scan(torch.maximum, x, 1, combine_mode=self.mode)


class MapsIndices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 16)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(vmap(lambda row: row + row.amax() % 7)(ids))


ATTENTION = 7 * 16 * 16 + 2 * 7 * 7 * 16 + 6 * 14 * 7 * 3
MEMBER = 4 * 36 * 27 + 4 * 36 * 10
CASES = {
    "weights": (OverWeights(0), "16", 5 * 16 * 8),
    "weights along axis 1": (OverWeights(1), "16", 5 * 16 * 8),
    "weights along axis 2": (OverWeights(2), "16", 5 * 16 * 8),
    "ensemble": (Ensemble(stacked_before=True), "3,8,8", 6 * MEMBER),
    "ensemble stacked in forward": (Ensemble(stacked_before=False), "3,8,8", 6 * MEMBER),
    "samples": (OverSamples(), "7,16", ATTENTION),
    "nested": (Nested(), "16", 16 * 5 * 8),
    "scans": (Scans(), "ids=int:12", 12 * 16 * 16),
    "indices": (MapsIndices(), "ids=int:12", 0),
}


@pytest.mark.parametrize("name", sampled(CASES, pytest.mark.nightly(part="frontends"), every=3))
def test_every_slice_is_counted(name: str) -> None:
    module, shape, macs = CASES[name]
    graph = dippm.read_graph(module.eval(), input=shape)
    assert graph.batch_is_symbolic
    assert not graph.unknown_ops
    assert [graph.at_batch(b).macs for b in (1, 4)] == [macs, 4 * macs]
    assert not graph.notes


def test_a_program_file_is_read_alike(tmp_path) -> None:
    module = OverWeights(1).eval()
    program = torch.export.export(module, (torch.rand(3, 16),), strict=False)
    torch.export.save(program, tmp_path / "mapped.pt2")
    graph = dippm.read_graph(tmp_path / "mapped.pt2", input="16", trust=True)
    assert graph.at_batch(2).macs == 2 * 5 * 16 * 8
    assert not graph.unknown_ops


def test_a_scan_for_gpus_alone_names_the_one_that_is_read() -> None:
    with pytest.raises(ConversionError, match=r"line \d+: return associative_scan") as caught:
        dippm.read_graph(Scans("pointwise").eval(), input="ids=int:12")
    assert 'combine_mode="generic"' in caught.value.hint
