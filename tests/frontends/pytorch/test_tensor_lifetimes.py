"""What a module's own code keeps alive is in memory: held against PyTorch's count of live bytes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dippm.estimate.models.footprint import MemoryFootprint
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.pytorch import convert_module, export_bytes, load_program
from dippm.model.graph import build
from dippm.model.relax.raw_graph import HELD_UNTIL, RawGraph
from training.studies.live_memory import torch_peak

WIDTH = 1024
BATCH = 4


class Collects(nn.Module):
    """A list of all results, as in DenseNet and VoVNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(torch.relu(layer(found[-1])))
        joined = torch.cat(found, dim=1)
        return joined.exp().tanh()[:, :1024]


class Names(nn.Module):
    """Names that are never bound again: of an attention, and of what is added at last."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = torch.softmax(q * k, dim=-1)
        weighted = scores * v
        out = self.out(weighted)
        return out.exp() + x


class Rebinds(nn.Module):
    """One name for everything: nothing is held."""

    def forward(self, x):
        for _ in range(5):
            x = x.exp()
            x = x.tanh()
        return x


class Stores(nn.Module):
    """Results that outlive the pass."""

    def forward(self, x):
        self.kept = [x.exp(), x.tanh()]
        y = self.kept[0] + self.kept[1]
        return y.exp().tanh().exp()


class InPlace(nn.Module):
    """Updates in place, views, dropout and what runs without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout()

    def forward(self, x):
        y = self.drop(self.norm(self.conv(x)))
        z = self.act(y)
        left, right = z.chunk(2, dim=1)
        with torch.autocast(x.device.type, enabled=False):
            both = left.float() * right.float()
        return both + x


class Blocks(nn.Module):
    """Calls of calls: a caller keeps what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Names(), Collects(), Names())

    def forward(self, x):
        return self.blocks(x)


CASES = {
    "a list": (Collects, (WIDTH,)),
    "names": (Names, (WIDTH,)),
    "one name": (Rebinds, (WIDTH,)),
    "an attribute": (Stores, (WIDTH,)),
    "in place": (InPlace, (8, 16, 16)),
    "nested": (Blocks, (WIDTH,)),
}


def peak_of(graph: RawGraph) -> float:
    return MemoryFootprint.of(build(graph)).peak(BATCH).total_bytes


@pytest.mark.parametrize("case", CASES)
def test_the_peak_is_what_pytorch_keeps_alive(case: str) -> None:
    make, shape = CASES[case]
    module = make().eval()
    graph = convert_module(copy.deepcopy(module), InputSpec({"": shape}))
    known = torch_peak(module.to("meta"), {"": torch.empty(BATCH, *shape)}, "fp32")
    assert peak_of(graph) == pytest.approx(known, rel=0.01)


def test_without_what_the_code_holds_a_list_would_be_free() -> None:
    graph = convert_module(Collects().eval(), InputSpec({"": (WIDTH,)}))
    held = peak_of(graph)
    for operator in graph.operators:
        operator.attributes.pop(HELD_UNTIL, None)
    assert peak_of(graph) < 0.8 * held


def test_it_crosses_the_border_of_the_worker(tmp_path) -> None:
    module = Collects().eval()
    sent = export_bytes(module, InputSpec({"": (WIDTH,)}))
    path = tmp_path / "program.pt2"
    path.write_bytes(sent.data)
    there = load_program(path, batch=sent.batch, batch_is_symbolic=sent.batch_is_symbolic)
    here = convert_module(module, InputSpec({"": (WIDTH,)}))
    assert [o.attributes.get(HELD_UNTIL) for o in there.operators] == [
        o.attributes.get(HELD_UNTIL) for o in here.operators
    ]
    assert any(HELD_UNTIL in o.attributes for o in there.operators)
    again = RawGraph.from_json(there.to_json())
    assert peak_of(again) == peak_of(there)


def test_code_without_python_tells_nothing() -> None:
    script = torch.jit.script(Collects().eval())
    graph = convert_module(script, InputSpec({"": (WIDTH,)}))
    assert not any(HELD_UNTIL in o.attributes for o in graph.operators)


def test_a_file_that_says_nonsense_is_read_without_it() -> None:
    graph = convert_module(Rebinds().eval(), InputSpec({"": (WIDTH,)}))
    for operator, nonsense in zip(graph.operators, ["later", 1.5, (1, 2), -7, 10**9], strict=False):
        operator.attributes[HELD_UNTIL] = nonsense
    assert peak_of(RawGraph.from_json(graph.to_json())) > 0


class Scaled(nn.Module):
    """Weights that each pass computes, as weight-standardised convolutions do."""

    def __init__(self, *, computes: bool) -> None:
        super().__init__()
        self.computes = computes
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        for weight in self.weights:
            x = nn.functional.linear(x, weight.tanh() if self.computes else weight)
        return x


@pytest.mark.parametrize(("computes", "copies"), [(False, 4), (True, 1)])
def test_autocast_keeps_copies_of_parameters_alone(computes: bool, copies: int) -> None:
    graph = convert_module(Scaled(computes=computes).eval(), InputSpec({"": (WIDTH,)}))
    alive = MemoryFootprint.of(build(graph), "amp").peak(BATCH)
    assert alive.cast_weight_bytes == copies * 2 * WIDTH * WIDTH
