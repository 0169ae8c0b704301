"""Kernels find the calls of our graph: on real profiles of the CPU, and on a made one of a GPU."""

import dataclasses
import random

import pytest
import torch
from torch import nn

from dippm.errors import DippmError
from dippm.measure.collected.kernels import encode_tables, read_table_file
from dippm.measure.kernels import TracedKernel
from dippm.measure.kernels.join import KernelOwner, align, join_kernels
from dippm.measure.kernels.profile import profile_step
from dippm.measure.protocol import Regime
from dippm.measure.regimes import prepare_step
from dippm.model.frontends import InputSpec
from dippm.model.frontends.pytorch import convert_module
from dippm.model.graph import ModelGraph, build

CPU = torch.device("cpu")


class Network(nn.Module):
    """Two equal branches that are added, attention, and a hard swish that exporters spell out."""

    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Hardswish())
        self.right = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Hardswish())
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.left(x) + self.right(x)
        x = x.flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x.mean(1))


@pytest.fixture(scope="module")
def network():
    return Network().eval()


@pytest.fixture(scope="module")
def graph(network) -> ModelGraph:
    return build(convert_module(network, InputSpec.parse((3, 12, 12))))


def kernels_of(network: nn.Module, phase: str = "inference", *, marks: bool = True):
    inputs = (torch.randn(2, 3, 12, 12),)
    with prepare_step(network, inputs, Regime(phase=phase), device=CPU) as step:
        return profile_step(step, CPU, module=network if marks else None)


def nodes_by_operator(kernels, places, graph) -> set[tuple[str, str, str | None]]:
    """Return (torch's operator, canonical operator and module it was joined with)."""
    pairs = zip(kernels, places, strict=True)
    return {
        (k.operators[-1], graph.nodes[p.node].op, graph.nodes[p.node].path)
        for k, p in pairs
        if p.how == "call"
    }


@pytest.mark.parametrize("marks", [True, False], ids=["modules", "order alone"])
def test_each_operator_finds_the_node_of_its_module(network, graph, marks):
    kernels = kernels_of(network, marks=marks)
    found = nodes_by_operator(kernels, join_kernels(kernels, graph), graph)
    assert {
        ("aten::conv2d", "conv2d", "left.0"),
        ("aten::conv2d", "conv2d", "right.0"),
        ("aten::hardswish", "hard_swish", "left.2"),
        ("aten::hardswish", "hard_swish", "right.2"),
        ("aten::linear", "dense", "head"),
    } <= found
    convolutions = {path for name, _, path in found if name == "aten::conv2d"}
    assert convolutions == {"left.0", "right.0"}


def test_nearly_all_time_is_joined_and_nothing_is_lost(network, graph):
    kernels = kernels_of(network)
    places = join_kernels(kernels, graph)
    assert len(places) == len(kernels)
    total = sum(k.ns for k in kernels)
    with_node = sum(k.ns for k, p in zip(kernels, places, strict=True) if p.node is not None)
    assert with_node > 0.95 * total


def test_a_kernel_of_a_wrapper_goes_to_a_node_of_its_module(network, graph):
    """Attention runs as one operator that the graph does not have."""
    kernels = kernels_of(network)
    own = [
        p
        for k, p in zip(kernels, join_kernels(kernels, graph), strict=True)
        if k.operators == ("aten::_native_multi_head_attention",)
    ]
    assert own
    for place in own:
        assert place.how == "module"
        assert graph.nodes[place.node].path == "attention"


def test_gradients_belong_to_the_operator_that_they_are_of(network, graph):
    kernels = kernels_of(network, "train")
    places = join_kernels(kernels, graph)
    paths = {
        graph.nodes[p.node].path
        for k, p in zip(kernels, places, strict=True)
        if k.kernel == "aten::convolution_backward"
    }
    assert paths == {"left.0", "right.0"}
    assert {p for k, p in zip(kernels, places, strict=True) if k.part == "optimizer"} == {
        KernelOwner()
    }


def test_kernels_of_a_gpu_go_where_their_launching_operator_goes(network, graph):
    """A GPU's table has the chain of operators, and rows for kernels only."""
    on_cpu = kernels_of(network)
    linear = next(k for k in on_cpu if k.operators == ("aten::linear", "aten::addmm"))
    gpu = [
        dataclasses.replace(linear, kernel=name, grid=(4, 1, 1), stream=7)
        for name in ("sm90_gemm", "splitKreduce")
    ]
    stray = TracedKernel("Memset", (), (), None, "forward", None, 0, 1)
    first, second, none = join_kernels([*gpu, stray], graph)
    assert first == second
    assert (first.how, graph.nodes[first.node].path) == ("call", "head")
    assert none == KernelOwner()


def test_a_graph_without_calls_has_no_place(network, graph):
    kernels = kernels_of(network)
    assert set(join_kernels(kernels, dataclasses.replace(graph, calls=None))) == {KernelOwner()}


def test_the_heaviest_order_wins_over_the_longest():
    kinds = [{"view"}, {"view"}, {"product", "dense"}]
    assert align(["product", "view", "view"], kinds, [0.1, 0.1, 1.0]) == [2, None, None]
    assert align(["view", "dense"], kinds, [0.1, 0.1, 1.0])[1] == 2
    assert align([], kinds, [1, 1, 1]) == []
    assert align(["add"], [], []) == [None]


@pytest.mark.parametrize("name", ["kernels-0000.parquet", "kernels-0000.jsonl.gz"])
def test_tables_of_many_points_come_back_as_they_were(network, tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    tables = {"a": kernels_of(network), "b": kernels_of(network, "train")}
    content = encode_tables({k: [r.to_dict() for r in v] for k, v in tables.items()}, name=name)
    (tmp_path / name).write_bytes(content)
    assert read_table_file(tmp_path / name) == tables
    (tmp_path / name).write_bytes(content[:50])
    with pytest.raises(DippmError, match="cannot be read"):
        read_table_file(tmp_path / name)


def test_a_kernel_takes_few_bytes(network):
    """About 2 MB for 1,500 points of 200 kernels is 7 bytes each; times differ by point."""
    pytest.importorskip("pyarrow")
    drawn = random.Random(0)
    rows = [
        kernel.to_dict() | {"operators": kernel.operators[:2], "instances": kernel.instances[:2]}
        for kernel in kernels_of(network)
        if len(kernel.operators) < 3
    ]
    tables = {
        f"{drawn.getrandbits(80):020x}": [
            row | {"ns": round(row["ns"] * drawn.uniform(0.5, 2.0))} for row in rows
        ]
        for _ in range(100)
    }
    size = len(encode_tables(tables, name="kernels-0000.parquet"))
    assert size / (100 * len(rows)) < 10
