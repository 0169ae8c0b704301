"""Attention without fused kernels: what it launches is what a model spelled in steps launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.features.kernels import launched
from dippm.model.graph import build
from dippm.model.graph.model_graph import ModelGraph
from tests.unit.graph.sketch import BATCH, Sketch

HEADS, LENGTH, WIDTH = 12, 128, 64
SHAPE = (BATCH, HEADS, LENGTH, WIDTH)
TABLE = (BATCH, HEADS, LENGTH, LENGTH)
SCORES = 4 * HEADS * LENGTH * LENGTH
PRODUCTS = ("attention", "batched_gemm")


def operands(s: Sketch, *, permuted: bool) -> list[int]:
    if not permuted:
        return [s.input(*SHAPE) for _ in "qkv"]
    given = [s.input(BATCH, LENGTH, HEADS, WIDTH) for _ in "qkv"]
    return [s.call("permute_dims", [x], *SHAPE, axes=(0, 2, 1, 3)) for x in given]


def asked_as_one(*, permuted: bool = False, mask: tuple[int, ...] = ()) -> ModelGraph:
    s = Sketch()
    inputs = operands(s, permuted=permuted)
    inputs += [s.input(*mask)] if mask else []
    return s.graph(s.call("aten.scaled_dot_product_attention", inputs, *SHAPE))


def spelled(*, permuted: bool = False, mask: tuple[int, ...] = ()) -> ModelGraph:
    s = Sketch()
    query, key, value = operands(s, permuted=permuted)
    query = s.call("multiply", [query, s.number(0.125)], *SHAPE)
    key = s.call("permute_dims", [key], BATCH, HEADS, WIDTH, LENGTH, axes=(0, 1, 3, 2))
    scores = s.call("matmul", [query, key], *TABLE)
    if mask:
        scores = s.call("add", [scores, s.input(*mask)], *TABLE)
    weights = s.call("nn.softmax", [scores], *TABLE, axis=3)
    raw = s.raw(s.call("matmul", [weights, value], *SHAPE))
    return build(replace(raw, is_exported_by_pytorch=True))


def kernels(graph: ModelGraph, *how: Any, **more: Any) -> list[Kernel]:
    return [kernel._replace(node=0) for kernel in launched(graph.at_batch(4), *how, **more)]


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize(
    ("precision", "mask"),
    [("fp32", ()), ("fp16", (BATCH, 1, 1, LENGTH)), ("bf16", (LENGTH, LENGTH)), ("amp", ())],
)
def test_steps_launch_what_a_spelled_model_does(
    precision: Any, mask: tuple[int, ...], mode: Any, permuted: bool
) -> None:
    steps = kernels(
        asked_as_one(permuted=permuted, mask=mask), precision, mode, attention="unfused"
    )
    assert steps == kernels(spelled(permuted=permuted, mask=mask), precision, mode)
    assert any(kernel.kind == "batched_gemm" for kernel in steps)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "amp"])
def test_the_same_products_and_the_scores_are_written(precision: Any) -> None:
    graph = asked_as_one()
    fused, steps = kernels(graph, precision), kernels(graph, precision, attention="unfused")
    assert [k.kind for k in fused if k.kind != "cast"] == ["attention"]
    flops = [sum(k.flops for k in found if k.kind in PRODUCTS) for found in (fused, steps)]
    assert flops[0] == flops[1]
    low = 4 if precision == "fp32" else 2
    first = next(k for k in steps if k.kind == "batched_gemm")
    (softmax,) = (k for k in steps if k.kind == "softmax")
    assert first.write_bytes == low * SCORES
    assert (softmax.m, softmax.n) == (4 * HEADS * LENGTH, LENGTH)
    assert softmax.write_bytes == (4 if precision == "amp" else low) * SCORES


def test_autocast_keeps_masked_scores_in_half_precision() -> None:
    steps = kernels(asked_as_one(mask=(BATCH, 1, LENGTH, LENGTH)), "amp", attention="unfused")
    (added,) = (k for k in steps if k.kind == "broadcast")
    assert (added.in_bytes, added.out_bytes) == (2, 2)
    (back,) = (k for k in steps if k.kind == "cast" and k.in_bytes == 4 and k.m == SCORES)
    assert back.out_bytes == 2


def test_heads_between_length_and_width_are_the_same_work() -> None:
    shape = (BATCH, LENGTH, HEADS, WIDTH)
    s = Sketch()
    graph = s.graph(s.call("nn.attention", [s.input(*shape) for _ in "qkv"], *shape))
    steps = kernels(graph, "fp16", attention="unfused")
    assert steps == kernels(asked_as_one(permuted=True), "fp16", attention="unfused")


def test_what_fused_kernels_do_not_take_keeps_its_own_steps() -> None:
    shape = (BATCH, 4, HEADS, LENGTH, WIDTH)
    s = Sketch()
    graph = s.graph(
        s.call("aten.scaled_dot_product_attention", [s.input(*shape) for _ in "qkv"], *shape)
    )
    assert kernels(graph, "fp16") == kernels(graph, "fp16", attention="unfused")


def test_a_table_follows_the_batch() -> None:
    table = KernelTable.of(asked_as_one(permuted=True), "fp16", attention="unfused")
    at_four = launched(asked_as_one(permuted=True).at_batch(4), "fp16", attention="unfused")
    assert table.quantities(4)[:, 2].tolist() == [k.write_bytes for k in at_four]


def fused(length: int, width: int, precision: Any, **attributes: Any) -> Kernel:
    s, shape = Sketch(), (BATCH, HEADS, length, width)
    inputs = [s.input(*shape) for _ in "qkv"]
    called = s.call("aten.scaled_dot_product_attention", inputs, *shape, **attributes)
    return kernels(s.graph(called), precision)[-1]


@pytest.mark.parametrize(("length", "share"), [(64, 1.0), (128, 1.0), (256, 0.75), (1024, 0.5625)])
def test_causal_attention_leaves_out_the_blocks_beyond_the_diagonal(length, share) -> None:
    whole = fused(length, WIDTH, "fp16")
    assert fused(length, WIDTH, "fp16", is_causal=0) == whole
    assert fused(length, WIDTH, "fp16", is_causal=1) == whole._replace(flops=share * whole.flops)


@pytest.mark.parametrize(("width", "taken"), [(16, 32), (40, 64), (64, 64), (72, 96), (512, 512)])
def test_a_fused_kernel_in_half_precision_is_of_the_next_width(width, taken) -> None:
    work = 4.0 * 4 * HEADS * LENGTH * LENGTH
    assert fused(LENGTH, width, "fp16").flops == work * taken
    assert fused(LENGTH, width, "fp32").flops == work * width
