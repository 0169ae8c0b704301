"""Every route names the module or layer of its operators."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dippm.model.frontends import load
from dippm.model.frontends.torch.paths import script_operators
from dippm.model.graph import ModelGraph, build
from tests.frontends.test_parity import input_shape
from tests.frontends.twins.writers import Writers
from tests.samples import sampled

SHAPE = (3, 16, 16)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)])
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = x + self.act(conv(x))
        return self.norm(x)


class Net(nn.Module):
    """With a submodule called `module`, a list that is never called itself, and a repeated one."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.Sequential(Residual(), nn.Sequential(Residual()))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(torch.sigmoid(self.module(x)))
        return self.head(x.mean((2, 3)))


CONVOLUTIONS = [
    "module",
    "stages.0.convs.0",
    "stages.0.convs.1",
    "stages.1.0.convs.0",
    "stages.1.0.convs.1",
]


def graph_of(source: object, shape: tuple[int, ...] = SHAPE) -> ModelGraph:
    return build(load(source, shape, trust=True, cache=False))


def paths(graph: ModelGraph, op: str) -> list[str]:
    return [node.path for node in graph.nodes if node.op == op]


def test_a_module_in_memory_and_its_pt2():
    net = Net().eval()
    graph = graph_of(net)
    assert paths(graph, "conv2d") == CONVOLUTIONS
    assert paths(graph, "relu") == ["stages.0.act"] * 2 + ["stages.1.0.act"] * 2
    assert paths(graph, "add") == ["stages.0"] * 2 + ["stages.1.0"] * 2
    assert paths(graph, "batch_norm") == ["stages.0.norm", "stages.1.0.norm"]
    assert paths(graph, "sigmoid") == [""]  # computed by the outermost module itself
    assert paths(graph, "dense") == ["head"]


def test_a_program_from_a_file_keeps_the_paths_of_its_first_export(tmp_path: Path):
    net = Net().eval()
    torch.export.save(torch.export.export(net, (torch.zeros(2, *SHAPE),)), tmp_path / "net.pt2")
    again = graph_of(tmp_path / "net.pt2")
    assert [(n.op, n.path) for n in again.nodes] == [(n.op, n.path) for n in graph_of(net).nodes]


def scripted(net: nn.Module, compiler: str) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if compiler == "trace":
            return torch.jit.trace(net, torch.zeros(2, *SHAPE))
        return torch.jit.script(net)


@pytest.mark.parametrize(
    "compiler", sampled(["script", "trace"], pytest.mark.nightly(part="frontends"))
)
def test_torchscript_has_the_paths_of_its_source(tmp_path: Path, compiler: str):
    net = Net().eval()
    scripted(net, compiler).save(str(tmp_path / "net.pt"))
    graph = graph_of(tmp_path / "net.pt")
    assert [(n.op, n.path) for n in graph.nodes] == [(n.op, n.path) for n in graph_of(net).nodes]


def test_naming_leaves_a_scripted_module_as_it_was():
    module = scripted(Net().eval(), "script")
    stages = dict(module.named_modules())["stages"]
    before = str(module.graph), str(stages.graph)
    assert script_operators(module)
    assert (str(module.graph), str(stages.graph)) == before


class Branches(nn.Module):
    """One of two branches runs, and the loop's length stands in no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.last = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.left(x)) if x.shape[1] > 3 else torch.tanh(self.right(x))
        for _ in range(x.shape[1]):
            x = torch.relu(x)
        return torch.sigmoid(self.last(x))


def test_scripted_control_flow_is_never_guessed(tmp_path: Path):
    scripted(Branches().eval(), "script").save(str(tmp_path / "net.pt"))
    graph = graph_of(tmp_path / "net.pt")
    assert paths(graph, "conv2d") == ["right", "last"]
    assert set(paths(graph, "relu") + paths(graph, "tanh") + paths(graph, "sigmoid")) <= {""}


def test_in_place_updates_of_slices_keep_paths():
    class Shift(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.zeros_like(x)
            y[:, 1:] = x[:, :-1]
            return torch.tanh(y)

    graph = graph_of(nn.Sequential(nn.Conv2d(3, 8, 1), Shift()).eval())
    assert paths(graph, "conv2d") == ["0"]
    assert paths(graph, "tanh") == ["1"]


@pytest.mark.parametrize("dynamo", sampled([False, True], pytest.mark.nightly(part="frontends")))
def test_onnx_of_either_exporter(tmp_path: Path, dynamo: bool):
    file = str(tmp_path / "net.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Net().eval(), (torch.zeros(2, *SHAPE),), file, dynamo=dynamo, verbose=False
        )
    graph = build(load(file, None, cache=False))
    assert paths(graph, "conv2d") == CONVOLUTIONS
    assert paths(graph, "add") == ["stages.0"] * 2 + ["stages.1.0"] * 2
    assert paths(graph, "dense") == ["head"]
    assert paths(graph, "sigmoid") == [""]


def test_a_name_of_any_length_stays_readable(tmp_path: Path, onnx_file: Path):
    import onnx

    model = onnx.load(onnx_file)
    for node in model.graph.node:
        node.name = "x" * 1_000_000
    onnx.save(model, tmp_path / "long.onnx")
    graph = build(load(tmp_path / "long.onnx", None, cache=False))
    assert {len(node.path) for node in graph.nodes} == {400}


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "route", sampled(["keras", "savedmodel"], pytest.mark.nightly(part="frontends"))
)
def test_keras_layers(writers: Writers, tmp_path: Path, route: str):
    file = writers.write(tmp_path, route, "lstm", "random")
    graph = build(load(file, input_shape(route, "lstm"), cache=False, timeout_s=400))
    found = [*paths(graph, "lstm"), *paths(graph, "dense")]
    if route == "keras":
        assert found == ["lstm", "lstm_1", "dense"]
    else:  # TensorFlow counts the scopes of a name, and the file has no other names
        assert found == ["functional_1/lstm_1", "functional_1/lstm_1_2", "functional_1/dense_1"]


@pytest.mark.paddle
def test_paddle_layers(writers: Writers, tmp_path: Path):
    file = writers.write(tmp_path, "paddle", "encoder", "random")
    graph = build(load(file, input_shape("paddle", "encoder"), cache=False, timeout_s=400))
    dense = paths(graph, "dense")
    assert len(dense) == len(set(dense)) == 12
    first, second = dict.fromkeys(path.partition(".")[0] for path in dense)
    # Paddle numbers layers on from whatever the writing process traced before.
    assert first.startswith("EncoderLayer")
    assert second.startswith("EncoderLayer_")
    layer = f"{first}.MultiHeadAttention"
    assert dense[:2] == [f"{layer}.Linear", f"{layer}.Linear_1"]
