"""Work on 8-bit integers: counted, read in its own bytes, and done by its own unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.devices.catalog import find
from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_features import N_FEATURES, DeviceView, kernel_features
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.features.kernels import launched
from tests.unit.graph.sketch import BATCH, Sketch, ops


def test_products_of_integers_are_products() -> None:
    s = Sketch()
    x = s.input(BATCH, 3, 8, 8, dtype="uint8")
    weight, zero = s.weight(4, 3, 3, 3, dtype="int8"), s.number(0.0)
    y = s.call("onnx.ConvInteger", [x, weight, zero, zero], BATCH, 4, 6, 6, dtype="int32")
    graph = s.graph(y).at_batch(1)
    assert ops(graph) == ["conv2d"]
    assert graph.macs == 4 * 6 * 6 * 3 * 9
    assert graph.param_bytes == graph.nodes[0].param_bytes == 4 * 27
    (kernel,) = launched(graph, "fp16")
    assert (kernel.unit, kernel.read_bytes, kernel.write_bytes) == ("int8", 3 * 64, 4 * 4 * 36)
    assert kernel.weight_bytes == 4 * 27


@pytest.mark.parametrize("name", ["onnx.MatMulInteger", "aten._int_mm"])
def test_a_matrix_of_integers_is_a_dense_layer(name: str) -> None:
    s = Sketch()
    x, weight = s.input(BATCH, 16, dtype="int8"), s.weight(16, 8, dtype="int8")
    graph = s.graph(s.call(name, [x, weight], BATCH, 8, dtype="int32")).at_batch(2)
    assert (ops(graph), graph.macs) == (["dense"], 2 * 16 * 8)


@pytest.mark.parametrize("name", ["onnx.QLinearMatMul", "onnx.QGemm"])
def test_scales_and_zero_points_are_no_operands(name: str) -> None:
    s = Sketch()
    x, weight = s.input(BATCH, 16, dtype="int8"), s.weight(16, 8, dtype="int8")
    scale, zero = s.number(0.1), s.number(0.0)
    y = s.call(name, [x, scale, zero, weight, scale, zero, scale, zero], BATCH, 8, dtype="int8")
    graph = s.graph(y).at_batch(1)
    assert (ops(graph), graph.macs) == (["dense"], 16 * 8)
    assert [k.unit for k in launched(graph)] == ["int8"]


def test_a_product_between_dequantise_and_quantise_is_one_of_integers() -> None:
    s = Sketch()
    scale, zero = s.number(0.1), s.number(0.0)
    x = s.call("onnx.QuantizeLinear", [s.input(BATCH, 16), scale, zero], BATCH, 16, dtype="int8")
    weight = s.weight(16, 8, dtype="int8")
    matrix = s.call("onnx.DequantizeLinear", [weight, scale, zero], 16, 8)
    y = s.call("onnx.DequantizeLinear", [x, scale, zero], BATCH, 16)
    y = s.call("matmul", [y, matrix], BATCH, 8)
    y = s.call("add", [y, s.weight(8)], BATCH, 8)
    y = s.call("onnx.QuantizeLinear", [y, scale, zero], BATCH, 8, dtype="int8")
    graph = s.graph(s.call("onnx.DequantizeLinear", [y, scale, zero], BATCH, 8)).at_batch(1)
    assert ops(graph) == ["quantize", "dense", "dequantize"]
    assert graph.nodes[1].in_dtypes == ("int8",)
    assert [k.unit for k in launched(graph)] == ["fp32", "int8", "fp32"]


def test_weights_alone_in_eight_bits_leave_the_product_to_floats() -> None:
    s = Sketch()
    matrix = s.call("onnx.DequantizeLinear", [s.weight(16, 8, dtype="int8")], 16, 8)
    graph = s.graph(s.call("matmul", [s.input(BATCH, 16), matrix], BATCH, 8)).at_batch(1)
    assert [k.unit for k in launched(graph)] == ["fp32"]


def test_a_device_that_lists_no_rate_for_integers_lends_that_of_half() -> None:
    s = Sketch()
    x, weight = s.input(BATCH, 64, dtype="int8"), s.weight(64, 8, dtype="int8")
    graph = s.graph(s.call("onnx.MatMulInteger", [x, weight], BATCH, 8, dtype="int32"))
    table, device = KernelTable.of(graph), find("A100")
    view, half, integers = DeviceView.of(device), UNITS.index("half"), UNITS.index("int8")
    assert view.peak_flops_per_ms[integers] == view.peak_flops_per_ms[half]
    known = replace(device, peak_tflops={**device.peak_tflops, "int8": 624.0})
    assert DeviceView.of(known).peak_flops_per_ms[integers] == 624e9
    features = kernel_features(table, 1, view)
    assert features.shape == (1, N_FEATURES)
    assert np.isfinite(features).all()
