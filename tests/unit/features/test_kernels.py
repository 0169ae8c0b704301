"""Which kernels a graph launches, and what they move, per precision and mode."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dataset.measured.nodes import GraphBuilder
from dippm.devices import find
from dippm.estimate.features.kernel_features import (
    FEATURE_NAMES,
    N_FEATURES,
    DeviceView,
    kernel_features,
    roofline_ms,
    serial_ms,
)
from dippm.estimate.features.kernel_table import QUANTITIES, KernelTable
from dippm.estimate.features.kernels import launched
from dippm.model.graph.model_graph import ModelGraph

BATCH = 1009


def residual_block() -> ModelGraph:
    b = GraphBuilder(batch=BATCH)
    x = b.input((BATCH, 64, 56, 56))
    conv = {
        "kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1),
        "groups": 1, "in_channels": 64, "out_channels": 64,
    }  # fmt: skip
    shape = (BATCH, 64, 56, 56)
    weights = 64 * 64 * 9
    first = b.add("conv2d", [x], shape, attributes=conv, weights=weights, absorbed=("batch_norm",))
    relu = b.add("relu", [first], shape)
    second = b.add("conv2d", [relu], shape, attributes=conv, weights=weights)
    b.add("add", [second, relu], shape)
    return b.graph(batch_is_symbolic=True)


def attention(rank: int) -> ModelGraph:
    b = GraphBuilder(batch=BATCH)
    shape = (BATCH, *(1,) * (rank - 4), 12, 197, 64)
    attributes = {
        "heads": 12, "query_length": 197, "key_length": 197, "head_dim": 64, "value_dim": 64,
    }  # fmt: skip
    b.add("attention", [b.input(shape) for _ in "qkv"], shape, attributes=attributes,
          absorbed=("sdpa",))  # fmt: skip
    return b.graph(batch_is_symbolic=True)


def permuted(copies: int) -> ModelGraph:
    b = GraphBuilder(batch=BATCH)
    x = b.input((BATCH, 64, 56, 56))
    b.add("transpose", [x], (BATCH, 56, 56, 64),
          attributes={"permutation": (0, 2, 3, 1), "copies": copies})  # fmt: skip
    return b.graph(batch_is_symbolic=True)


def kinds(graph: ModelGraph, *args: str, **kwargs: bool) -> Counter[str]:
    return Counter(kernel.kind for kernel in launched(graph, *args, **kwargs))  # type: ignore[arg-type]


def test_eager_launches_the_batch_norm_that_the_graph_folded() -> None:
    assert kinds(residual_block().at_batch(2)) == Counter(
        conv_spatial=2, batch_norm=1, activation=1, elementwise=1
    )


def test_autocast_casts_the_input_and_every_weight() -> None:
    kernels = launched(residual_block().at_batch(2), "amp")
    casts = [k for k in kernels if k.kind == "cast"]
    assert sorted(k.weight_bytes for k in casts) == [0.0, 4.0 * 36864, 4.0 * 36864]
    assert all(k.unit == "half" for k in kernels if k.kind == "conv_spatial")
    norm = next(k for k in kernels if k.kind == "batch_norm")
    assert (norm.in_bytes, norm.out_bytes) == (2, 2)


def test_default_float32_runs_convolutions_in_tf32_and_products_in_ieee() -> None:
    b = GraphBuilder(batch=BATCH)
    attributes = {"in_features": 256, "out_features": 128}
    b.add("dense", [b.input((BATCH, 256))], (BATCH, 128), attributes=attributes, weights=256 * 128)
    dense = b.graph(batch_is_symbolic=True).at_batch(4)
    block = residual_block().at_batch(4)
    assert {k.unit for k in launched(dense, "fp32") if k.kind == "gemm"} == {"fp32"}
    assert {k.unit for k in launched(dense, "tf32") if k.kind == "gemm"} == {"tf32"}
    assert {k.unit for k in launched(block, "fp32") if k.kind == "conv_spatial"} == {"tf32"}
    assert {k.unit for k in launched(block, "fp32-ieee") if k.kind == "conv_spatial"} == {"fp32"}


@pytest.mark.parametrize(("copies", "channels_last", "expected"), [(1, False, 1), (0, False, 0),
                                                                   (1, True, 0)])  # fmt: skip
def test_only_a_permutation_that_moves_data_launches_a_copy(
    copies: int, channels_last: bool, expected: int
) -> None:
    found = kinds(permuted(copies).at_batch(2), channels_last=channels_last)
    assert found == Counter({"copy": expected} if expected else {})


def test_attention_of_more_axes_than_fused_kernels_take_is_done_in_steps() -> None:
    fused = launched(attention(4).at_batch(2), "fp16")
    steps = launched(attention(5).at_batch(2), "fp16")
    assert [k.kind for k in fused] == ["attention"]
    assert [k.kind for k in steps if k.kind not in ("cast", "copy", "elementwise")] == [
        "batched_gemm", "softmax", "batched_gemm",
    ]  # fmt: skip
    products = sum(k.flops for k in steps if k.kind == "batched_gemm")
    assert products == pytest.approx(fused[0].flops)


def test_compiling_fuses_streams_and_keeps_the_work() -> None:
    graph = residual_block().at_batch(8)
    eager, compiled = launched(graph, "amp"), launched(graph, "amp", "compiled")
    assert len(compiled) < len(eager)
    assert sum(k.flops for k in compiled) == pytest.approx(sum(k.flops for k in eager))
    moved = [sum(k.read_bytes + k.write_bytes for k in ks) for ks in (eager, compiled)]
    assert moved[1] < moved[0]


@pytest.mark.parametrize("batch", [1, 3, 32, 1024])
def test_table_at_any_batch_equals_an_expansion_at_that_batch(batch: int) -> None:
    graph = residual_block()
    table = KernelTable.of(graph, "amp")
    direct = launched(graph.at_batch(batch), "amp")
    expected = np.array([[getattr(k, q) for q in QUANTITIES] for k in direct])
    np.testing.assert_allclose(table.quantities(batch), expected, rtol=1e-12)


def test_features_are_finite_and_a_slice_is_slower() -> None:
    table = KernelTable.of(residual_block(), "fp16")
    device = find("A100-40GB")
    whole, part = DeviceView.of(device), DeviceView.of(device, device.mig_profiles[0])
    features = kernel_features(table, 32, whole)
    assert features.shape == (len(table.node), N_FEATURES)
    assert np.isfinite(features).all()
    ratio = roofline_ms(table, 32, part).sum() / roofline_ms(table, 32, whole).sum()
    assert 5.0 < ratio < 108 / 14 + 0.5


def test_short_kernels_go_by_the_clock_and_long_ones_do_not() -> None:
    b = GraphBuilder(batch=BATCH)
    shape = (BATCH, 64, 2, 2)
    b.add("relu", [b.input(shape)], shape)
    relu, device = KernelTable.of(b.graph(batch_is_symbolic=True), "fp32"), find("A100-40GB")
    slow, fast = (
        DeviceView.of(replace(device, boost_clock_mhz=clock_mhz)) for clock_mhz in (1000, 2000)
    )
    short = [roofline_ms(relu, 1, view)[0] for view in (slow, fast)]
    long = [roofline_ms(relu, 1_000_000, view)[0] for view in (slow, fast)]
    assert short[0] / short[1] == pytest.approx(2, rel=0.01)
    assert long[0] / long[1] == pytest.approx(1, rel=0.01)
    cycles = FEATURE_NAMES.index("log_cycles")
    seen = [kernel_features(relu, 1, view)[0, cycles] for view in (slow, fast)]
    assert seen[0] == pytest.approx(seen[1], abs=0.01)


def test_bilinear_upsampling_of_contiguous_images_walks_serially() -> None:
    def upsampled(*, permuted: bool) -> ModelGraph:
        b = GraphBuilder(batch=BATCH)
        x: object = b.input((BATCH, 512, 7, 7))
        if permuted:
            x = b.add("transpose", [b.input((BATCH, 7, 7, 512))], (BATCH, 512, 7, 7),
                      attributes={"permutation": (0, 3, 1, 2), "copies": 0})  # fmt: skip
        b.add("resize", [x], (BATCH, 512, 14, 14), attributes={"mode": "linear"})  # type: ignore[list-item]
        return b.graph(batch_is_symbolic=True)

    contiguous, permuted, compiled = (
        serial_ms(KernelTable.of(upsampled(permuted=p), "fp16", mode), 64).sum()  # type: ignore[arg-type]
        for p, mode in ((False, "eager"), (True, "eager"), (False, "compiled"))
    )
    assert contiguous == pytest.approx(64 * 512 * 0.0003)
    assert permuted == compiled == 0


@pytest.mark.parametrize(("leading", "fused"), [((4,), True), ((), False), ((4, 16), False)])
def test_fused_attention_takes_four_axes(leading: tuple[int, ...], fused: bool) -> None:
    found = kinds(attention_graph(leading).at_batch(2))
    assert (found["attention"], found["batched_gemm"]) == ((1, 0) if fused else (0, 2))


def test_steps_of_attention_were_narrow_before_torch_2_5_and_add_the_mask_in_place() -> None:
    graph = attention_graph((), mask=True).at_batch(2)
    wide, narrow = (launched(graph, "fp16", kept_half=half) for half in ((), ("scores",)))
    scores = 2 * 196 * 196
    for kernels, width in ((wide, 4), (narrow, 2)):
        first, second = (k for k in kernels if k.kind == "batched_gemm")
        assert (first.write_bytes, first.unit) == (width * scores, "fp32" if width == 4 else "half")
        (mask,) = (k for k in kernels if k.kind == "broadcast")
        assert mask.in_place
        assert mask.write_bytes == width * scores
        assert second.k == 196
    assert sum(k.kind == "cast" for k in wide) == 5
    assert not any(k.kind == "cast" for k in narrow)


def attention_graph(leading: tuple[int, ...], *, mask: bool = False) -> ModelGraph:
    b = GraphBuilder(batch=BATCH)
    shape = (BATCH, *leading, 196, 32)
    attributes = {
        "heads": 4, "query_length": 196, "key_length": 196, "head_dim": 32, "value_dim": 32,
    }  # fmt: skip
    inputs = [b.input(shape) for _ in "qkv"]
    inputs += [b.input((BATCH, 196, 196))] if mask else []
    b.add("attention", inputs, shape, attributes=attributes, absorbed=("sdpa",))
    return b.graph(batch_is_symbolic=True)
