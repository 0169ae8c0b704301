"""A model held in half, bfloat16 or double is the model in float32, in every kind of file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import dippm
from dippm.errors import ModelFileError
from dippm.estimate.features.kernels.launch import launched
from dippm.model import frontends
from dippm.model.frontends import pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.graph import ModelGraph, build
from dippm.model.graph.draft import item_bytes
from dippm.model.graph.float_type import float_type, in_float32
from dippm.model.graph.model_graph import OpNode
from tests.frontends.pytorch.cases import CASES
from tests.frontends.pytorch.number_types import NETWORKS, example

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
ABSENT = {
    ("onnx", "bfloat16"): "Conv, LayerNormalization and LSTM of opset 20, the newest that this "
    "exporter writes, are not defined for it: the file is no valid model",
}
"""By route and type: files that cannot exist."""


def written(route: str, module: nn.Module, given: torch.Tensor, folder: Path) -> object:
    """Return what a route hands to `load`: the module itself, or a file."""
    path = folder / f"model.{route}"
    if route == "object":
        return module
    if route == "pt":
        torch.save(module, path)
    elif route == "pt2":
        sizes = ({0: torch.export.Dim.AUTO},)
        torch.export.save(torch.export.export(module, (given,), dynamic_shapes=sizes), path)
    elif route == "script":
        torch.jit.trace(module, (given,)).save(path)
    else:
        names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "N"}}}
        torch.onnx.export(module, (given,), path, dynamo=False, **names)
    return path


@pytest.fixture(scope="module")
def graph_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], ModelGraph]:
    """Return what returns the graph of a network by route and type; each is made once."""
    folder = tmp_path_factory.mktemp("written")

    @cache
    def made(route: str, name: str, dtype: str) -> ModelGraph:
        torch.manual_seed(0)
        kind, shape = NETWORKS[name]
        module = kind().eval().to(DTYPES[dtype])
        source = written(route, module, example(name, DTYPES[dtype]), folder)
        return build(frontends.load(source, shape, trust=True))

    return made


def in_type(node: OpNode, dtype: str) -> OpNode:
    """Return an operator on float32 as it is on another type: of so many bytes."""
    width = item_bytes(dtype)
    kinds = tuple(dtype if d == "float32" else d for d in node.in_dtypes)
    read = sum(
        node_size(shape) * item_bytes(kind)
        for shape, kind in zip(node.in_shapes, kinds, strict=True)
    )
    return replace(
        node,
        dtype=dtype if node.dtype == "float32" else node.dtype,
        in_dtypes=kinds,
        bytes_read=read if node.bytes_read else 0,
        bytes_written=node.bytes_written * width // 4
        if node.dtype == "float32"
        else node.bytes_written,
        param_bytes=node.param_bytes * width // 4,
    )


def node_size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


IN_FILES = [
    pytest.param(route, marks=pytest.mark.nightly(part="frontends"))
    for route in ("pt", "pt2", "script")
]


@pytest.mark.parametrize("route", ["object", *IN_FILES, "onnx"])
@pytest.mark.filterwarnings("ignore")
def test_graphs_are_equal_up_to_the_type(route, graph_of):
    differ = []
    for name in NETWORKS:
        plain = graph_of(route, name, "float32")
        assert float_type(plain) == "float32"
        for dtype in ("float16", "bfloat16", "float64"):
            if (route, dtype) in ABSENT:
                continue
            graph, case = graph_of(route, name, dtype), f"{name} {dtype}"
            assert float_type(graph) == dtype
            if graph.macs != plain.macs:
                differ.append(f"{case}: {graph.macs:,} MACs of {plain.macs:,}")
            if graph.param_bytes * 4 != plain.param_bytes * item_bytes(dtype):
                differ.append(f"{case}: {graph.param_bytes:,} bytes of weights")
            expected = [in_type(node, dtype) for node in plain.nodes]
            for found, node in zip(graph.nodes, expected, strict=False):
                if found != node:
                    differ.append(f"{case}: {found} for {node}")
            if len(graph.nodes) != len(plain.nodes) or graph.edges != plain.edges:
                differ.append(f"{case}: {graph.histogram()} for {plain.histogram()}")
            wide = in_float32(graph)
            if (wide.nodes, wide.param_bytes) != (plain.nodes, plain.param_bytes):
                differ.append(f"{case}: not the model in float32 again")
            for precision in ("fp32", "fp16", "amp"):
                kernels = [k._replace(node=0) for k in launched(wide, precision)]
                others = [k._replace(node=0) for k in launched(plain, precision)]
                if kernels != others:
                    differ.append(f"{case}: {len(kernels)} launches for {len(others)}, {precision}")
    assert not differ, "\n".join(differ[:20])


def test_the_routes_count_alike(graph_of):
    """What one route loses or counts twice in every type, the others show."""
    for name in NETWORKS:
        macs = {
            route: graph_of(route, name, "float16").macs for route in ("object", "script", "onnx")
        }
        assert len(set(macs.values())) == 1, f"{name}: {macs}"


@pytest.mark.nightly(part="frontends")
def test_every_layer_in_half_is_the_layer_in_float32():
    """Operators and MACs of all of `torch.nn`; nothing is counted beside what is carried."""
    differ, compared = [], 0
    for name, (module, shape) in CASES.items():
        spec = InputSpec.parse(shape)
        found = []
        for dtype in (torch.float32, torch.bfloat16):
            try:
                raw = pytorch.convert_module(module.eval().to(dtype), spec)
            except ModelFileError:  # no kernel of torch takes the type: fft, quantised layers
                break
            finally:
                module.to(torch.float32)  # the cases are shared
            called = [o.name for o in raw.operators if o.name not in ("astype", "copy")]
            found.append((build(raw).macs, called))
        if len(found) == 2:
            compared += 1
            if found[0] != found[1]:
                differ.append(f"{name}: {found[1]} for {found[0]}")
    assert compared > 150
    assert not differ, "\n".join(differ)


class Precise(nn.Module):
    """A norm in float32 whatever the weights are, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.ones(256)), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.layer(self.weight * wide.to(x.dtype))


def test_answers_follow_from_the_precision_asked_for():
    """A module in any type is predicted at a precision as the module in float32 is."""
    layers = nn.Sequential(nn.Conv2d(3, 64, 3, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(2),
                           nn.LazyLinear(256), Precise())  # fmt: skip
    layers(torch.zeros(1, 3, 64, 64))
    predictor = dippm.load()
    for precision in ("fp32", "fp16", "amp"):
        answers = {}
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            found = predictor.predict(
                layers.to(dtype), input=(3, 64, 64), batch=64, device="A100", precision=precision
            )
            parts = found.memory_parts
            answers[dtype] = (
                found.latency_ms,
                found.energy_j,
                found.memory_mb,
                parts.weights_mb,
                parts.activations_mb,
            )
        for dtype, answer in answers.items():
            assert answer == pytest.approx(answers[torch.float32], rel=5e-3), (precision, dtype)
