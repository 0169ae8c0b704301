"""Files that ONNX Runtime's optimizer wrote have the graph of the files they were made from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import dippm.model.graph
from dippm.errors import ConversionError
from dippm.model.frontends import onnx as route
from dippm.model.frontends.frontend import InputSpec

COMPUTE = ("conv2d", "dense", "batch_matmul", "attention", "layer_norm", "gelu", "relu", "add")


class Block(nn.Module):
    """A transformer block with its residual adds."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.grow, self.shrink = nn.Linear(32, 64), nn.Linear(64, 32)
        self.mix = nn.Linear(32, 32)

    def forward(self, x):
        x = self.first(x + self.mix(x))
        return self.second(x + self.shrink(nn.functional.gelu(self.grow(x))))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.a(x))
        return torch.relu(self.b(x) + x)


@pytest.mark.parametrize(
    ("module", "shape"),
    [(Block, (2, 10, 32)), (Convolutions, (2, 3, 16, 16))],
    ids=["transformer", "convolutions"],
)
def test_an_optimized_file_has_the_same_operators(export, optimized, module, shape):
    plain = export(module(), (torch.zeros(shape),), exporter="legacy")
    rewritten = optimized(plain)
    domains = {node.domain for node in onnx.load(rewritten).graph.node}
    assert "com.microsoft" in domains, "the optimizer fused nothing: this tests nothing"
    before, after = (
        dippm.model.graph.build(route.load(path, InputSpec({}))) for path in (plain, rewritten)
    )
    assert not after.unknown_ops
    assert before.macs == after.macs
    counts = [
        Counter({k: v for k, v in g.histogram().items() if k in COMPUTE}) for g in (before, after)
    ]
    assert counts[0] == counts[1]


def test_packed_attention_is_a_projection_and_an_attention(convert, make):
    node = helper.make_node(
        "Attention", ["x", "w", "b"], ["y"], domain="com.microsoft", num_heads=4
    )
    model = make(
        [node], [("x", ["N", 10, 32])], [("y", None)], weights={"w": (32, 96), "b": (96,)},
        domains=["com.microsoft"],
    )  # fmt: skip
    graph = dippm.model.graph.build(convert(model)).at_batch(1)
    assert graph.macs == 10 * 32 * 96 + 2 * 10 * 10 * 32
    assert not graph.unknown_ops


def test_a_skip_norm_gives_its_sum_as_well(convert, make, count):
    nodes = [
        helper.make_node(
            "SkipLayerNormalization", ["x", "x", "g", "g", "b"], ["n", "", "", "s"],
            domain="com.microsoft",
        ),
        helper.make_node("Mul", ["n", "s"], ["y"]),
    ]  # fmt: skip
    model = make(
        nodes, [("x", ["N", 10, 32])], [("y", None)], weights={"g": (32,), "b": (32,)},
        domains=["com.microsoft"],
    )  # fmt: skip
    assert count(convert(model)) == {"add": 2, "onnx.LayerNormalization": 1, "multiply": 1}


def test_a_fused_product(convert, make):
    node = helper.make_node(
        "FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft", transB=1, alpha=0.5
    )
    model = make([node], [("x", ["N", 6, 8])], [("y", None)], domains=["com.microsoft"])
    raw = convert(model)
    assert raw.values[raw.outputs[0]].shape[1:] == (6, 6)
    assert dippm.model.graph.build(raw).at_batch(1).macs == 6 * 6 * 8


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_a_fused_convolution(convert, make, count, activation):
    numbers = {"activation_params": np.array([0.0, 6.0])} if activation == "Clip" else {}
    node = helper.make_node(
        "FusedConv", ["x", "w", "b"], ["y"], domain="com.microsoft", activation=activation,
        pads=[1, 1, 1, 1], **numbers,
    )  # fmt: skip
    model = make(
        [node], [("x", ["N", 3, 8, 8])], [("y", None)], weights={"w": (4, 3, 3, 3), "b": (4,)},
        domains=["com.microsoft"],
    )  # fmt: skip
    found = count(convert(model))
    assert found["nn.conv2d"] == 1
    assert found["nn.relu" if activation == "Relu" else "onnx.Clip"] == 1


def test_a_layout_of_one_cpu_is_refused_with_the_level_that_works(export, optimized):
    runtime = pytest.importorskip("onnxruntime")
    plain = export(Convolutions(), (torch.zeros(2, 3, 16, 16),), exporter="legacy")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(blocked := plain.with_suffix(".all.onnx"))
    options.log_severity_level = 4
    runtime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
    if not any(n.domain.endswith("nchwc") for n in onnx.load(blocked).graph.node):
        pytest.skip("ONNX Runtime has no blocked layout for this processor")
    with pytest.raises(ConversionError, match="nchwc") as caught:
        route.load(blocked, InputSpec({}))
    assert "ORT_ENABLE_EXTENDED" in caught.value.hint
    assert route.load(optimized(plain), InputSpec({})).operators
