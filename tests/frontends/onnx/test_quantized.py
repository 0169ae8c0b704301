"""Files of 8 and fewer bits, as ONNX Runtime's quantiser and optimizer write them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import dippm.model.graph
from dippm.model.frontends import onnx as route
from dippm.model.frontends.frontend import InputSpec

quantization = pytest.importorskip("onnxruntime.quantization")
BYTES = {"int8", "uint8"}
MACS = 16 * 16 * 8 * 27 + 8 * 8 * 16 * 72 + 8 * 8 * 16 * 16 + 16 * 10


class Convolutions(nn.Module):
    """Three convolutions, a residual add and a classifier."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.c, self.last = nn.Conv2d(16, 16, 1), nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(self.b(torch.relu(self.a(x))))
        return self.last((x + self.c(x)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.lstm(x)[0])


class Samples(quantization.CalibrationDataReader):
    def __init__(self):
        self.left = [{"x0": np.random.rand(2, 3, 16, 16).astype("f")} for _ in range(2)]

    def get_next(self):
        return self.left.pop() if self.left else None


def graph(path):
    return dippm.model.graph.build(route.load(path, InputSpec({}))).at_batch(1)


def products(found):
    return [node for node in found.nodes if node.macs]


@pytest.fixture(scope="module")
def convolutions(export):
    return export(Convolutions(), (torch.randn(2, 3, 16, 16),), exporter="script")


@pytest.mark.parametrize("is_optimized", [False, True], ids=["as written", "optimized"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_a_statically_quantized_file_multiplies_bytes(
    convolutions, optimized, tmp_path, form, is_optimized
):
    path = tmp_path / "q.onnx"
    kind = quantization.QuantFormat[form]
    quantization.quantize_static(convolutions, path, Samples(), quant_format=kind)
    found = graph(optimized(path) if is_optimized else path)
    assert found.macs == MACS
    assert found.unknown_ops == {}
    assert all(set(node.in_dtypes) <= BYTES for node in products(found))
    assert sum(node.param_bytes for node in found.nodes) == 216 + 1152 + 256 + 160


@pytest.mark.parametrize("is_optimized", [False, True], ids=["as written", "optimized"])
def test_a_dynamically_quantized_file_multiplies_bytes(
    convolutions, optimized, tmp_path, is_optimized
):
    path = tmp_path / "q.onnx"
    quantization.quantize_dynamic(convolutions, path)
    found = graph(optimized(path) if is_optimized else path)
    assert found.macs == MACS
    assert found.unknown_ops == {}
    assert all(set(node.in_dtypes) <= BYTES for node in products(found))


@pytest.mark.parametrize("is_optimized", [False, True], ids=["as written", "optimized"])
def test_a_quantized_lstm_is_one_layer(export, optimized, tmp_path, is_optimized):
    path = tmp_path / "q.onnx"
    plain = export(Recurrent(), (torch.randn(2, 5, 8),), exporter="script")
    quantization.quantize_dynamic(plain, path)
    assert "DynamicQuantizeLSTM" in {node.op_type for node in onnx.load(path).graph.node}
    found = graph(optimized(path) if is_optimized else path)
    assert found.histogram()["lstm"] == 1
    assert found.macs == graph(plain).macs
    assert found.unknown_ops == {}


def test_weights_of_four_bits_are_priced_as_stored(make, convert):
    node = helper.make_node(
        "MatMulNBits", ["x", "packed", "scales"], ["y"], domain="com.microsoft", K=64, N=32,
        bits=4, block_size=32,
    )  # fmt: skip
    model = make(
        [node], [("x", ["N", 10, 64])], [("y", None)], weights={"scales": (64,)},
        constants={"packed": np.ones((32, 2, 16), np.uint8)}, domains=["com.microsoft"],
    )  # fmt: skip
    raw = convert(model)
    found = dippm.model.graph.build(raw).at_batch(1)
    assert found.macs == 10 * 64 * 32
    assert products(found)[0].param_bytes == 32 * 2 * 16
    assert "4 bits" in raw.notes[0]


@pytest.mark.parametrize(
    ("operator", "extra"), [("ConvInteger", []), ("QLinearConv", ["scale", "zero"])]
)
def test_zero_points_may_be_absent_or_there(make, convert, operator, extra):
    if operator == "ConvInteger":
        names = ["x", "w", "", "zero"]
    else:
        names = ["x", "scale", "zero", "w", "scale", "zero", "scale", "zero"]
    node = helper.make_node(operator, names, ["y"], pads=[1, 1, 1, 1])
    model = make(
        [node], [("x", ["N", 3, 8, 8], TensorProto.UINT8)], [("y", None)],
        constants={"w": np.ones((4, 3, 3, 3), np.uint8), "scale": np.float32(0.1),
                   "zero": np.uint8(3)},
    )  # fmt: skip
    found = dippm.model.graph.build(convert(model)).at_batch(1)
    assert found.histogram() == {"conv2d": 1}
    assert found.macs == 8 * 8 * 4 * 27
    assert found.nodes[0].param_bytes == 4 * 27
