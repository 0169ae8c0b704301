"""Kernels follow from calls as the file spells them: views, copies, casts, work on parameters."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels import launched
from dippm.model.graph import build
from dippm.model.relax.raw_graph import RawGraph
from tests.unit.graph.sketch import BATCH, Sketch


def eager(s: Sketch, *outputs: int, called: tuple[str, ...] = ("",), **how: Any) -> list[Kernel]:
    raw = s.raw(*outputs)
    graph = build(
        RawGraph(raw.values, raw.operators, raw.inputs, raw.outputs, BATCH, called=called)
    )
    return launched(graph.at_batch(2), **how)


def kinds(kernels: list[Kernel]) -> list[str]:
    return [kernel.kind for kernel in kernels]


def heads(s: Sketch) -> int:
    """Rows of 8 heads, with the heads before the rows: a view."""
    x = s.call("reshape", [s.input(BATCH, 16, 64)], BATCH, 16, 8, 8)
    return s.call("permute_dims", [x], BATCH, 8, 16, 8, axes=(0, 2, 1, 3))


def test_a_view_launches_nothing_and_its_reshape_copies() -> None:
    s = Sketch()
    merged = s.call("reshape", [heads(s)], BATCH, 128, 8)
    (copy,) = eager(s, merged)
    assert (copy.kind, copy.strided, copy.run) == ("copy", True, 8)
    assert copy.read_bytes == copy.write_bytes == 4 * 2 * 16 * 64


@pytest.mark.parametrize(("name", "permuted", "expected"), [
    ("aten.contiguous", False, []), ("aten.contiguous", True, ["copy"]),
    ("aten.clone", False, ["copy"]), ("aten.clone", True, ["copy"]),
])  # fmt: skip
def test_contiguous_copies_what_is_not_and_clone_always(
    name: str, permuted: bool, expected: list[str]
) -> None:
    s = Sketch()
    x = heads(s) if permuted else s.input(BATCH, 8, 16, 8)
    assert kinds(eager(s, s.call(name, [x], BATCH, 8, 16, 8))) == expected


def test_a_batched_product_copies_operands_whose_matrices_lie_apart() -> None:
    s = Sketch()
    left, right = heads(s), heads(s)
    turned = s.call("permute_dims", [right], BATCH, 8, 8, 16, axes=(0, 1, 3, 2))
    scores = s.call("matmul", [left, turned], BATCH, 8, 16, 16)
    assert kinds(eager(s, scores)) == ["copy", "copy", "batched_gemm"]


def test_a_parameter_is_cast_once_and_an_activation_for_each_reader() -> None:
    s = Sketch()
    x, weight = s.input(BATCH, 32), s.weight(32, 32)
    first = s.call("matmul", [x, weight], BATCH, 32)
    second = s.call("matmul", [x, weight], BATCH, 32)
    kernels = eager(s, first, second, precision="amp")
    casts = [k for k in kernels if k.kind == "cast"]
    assert Counter(bool(k.weight_bytes) for k in casts) == {True: 1, False: 2}


def test_a_bias_follows_a_convolution() -> None:
    s = Sketch()
    y = s.conv(s.input(BATCH, 8, 4, 4), s.weight(8, 8, 3, 3), BATCH, 8, 4, 4)
    bias = s.call("reshape", [s.weight(8)], 1, 8, 1, 1)
    kernels = eager(s, s.call("add", [y, bias], BATCH, 8, 4, 4))
    assert kinds(kernels) == ["conv_spatial", "broadcast"]


def test_a_dense_layer_adds_its_bias_itself() -> None:
    s = Sketch()
    weight = s.call("permute_dims", [s.weight(16, 32)], 32, 16)
    y = s.call("matmul", [s.input(BATCH, 32), weight], BATCH, 16)
    assert kinds(eager(s, s.call("add", [y, s.weight(16)], BATCH, 16))) == ["gemm"]


def test_a_cast_to_float32_and_back_runs_in_half_only() -> None:
    def norm() -> tuple[Sketch, int]:
        s = Sketch()
        wide = s.call("astype", [s.input(BATCH, 64)], BATCH, 64)
        y = s.call("exp", [wide], BATCH, 64)
        return s, s.call("astype", [y], BATCH, 64)

    s, y = norm()
    assert "cast" not in kinds(eager(s, y, precision="fp32"))
    half = eager(s, y, precision="fp16")
    assert [(k.in_bytes, k.out_bytes) for k in half] == [(2, 4), (4, 4), (4, 2)]


@pytest.mark.parametrize(("called", "expected"), [(("",), ["copy", "elementwise"]), ((), [])])
def test_work_on_parameters_is_done_on_every_pass_of_eager_pytorch_alone(
    called: tuple[str, ...], expected: list[str]
) -> None:
    s = Sketch()
    table = s.call("permute_dims", [s.weight(64, 16)], 16, 64, axes=(1, 0))
    table = s.call("aten.clone", [table], 16, 64, memory_format="contiguous_format")
    table = s.call("multiply", [table, s.number(2.0)], 16, 64)
    y = s.call("add", [s.input(BATCH, 16, 64), table], BATCH, 16, 64)
    assert kinds(eager(s, y, called=called)) == [*expected, "broadcast"]


def test_what_is_written_into_a_part_is_not_written_again() -> None:
    s = Sketch()
    x = s.input(BATCH, 16)
    part = s.call("strided_slice", [x], BATCH, 4, axes=(1,), begin=(0,), end=(4,), strides=(1,))
    doubled = s.call("multiply", [part, s.number(2.0)], BATCH, 4)
    whole = s.call("aten.slice_scatter", [x, doubled], BATCH, 16)
    kernels = eager(s, s.call("exp", [whole], BATCH, 16))
    assert kinds(kernels)[:-1] == ["elementwise"]
    assert kernels[-1].sources == (0,)


def test_parts_written_over_and_over_stay_as_few_as_their_kernels() -> None:
    s = Sketch()
    cut = {"axes": (1,), "begin": (0,), "end": (4,), "strides": (1,)}
    whole = s.input(BATCH, 16)
    for _ in range(40):  # twice as many makers with each would be 2^40
        part = s.call("strided_slice", [whole], BATCH, 4, **cut)
        doubled = s.call("multiply", [part, s.number(2.0)], BATCH, 4)
        inner = s.call("aten.slice_scatter", [part, doubled], BATCH, 4)
        whole = s.call("aten.slice_scatter", [whole, inner], BATCH, 16)
    kernels = eager(s, s.call("exp", [whole], BATCH, 16))
    assert len(kernels) == 41
    assert kernels[-1].sources == tuple(range(40))


def test_what_works_in_place_keeps_the_width_of_what_it_changes() -> None:
    s = Sketch()
    y = s.call("matmul", [s.input(BATCH, 32), s.weight(32, 32)], BATCH, 32)
    wide = s.call("exp", [s.input(BATCH, 32)], BATCH, 32)
    kernels = eager(s, s.call("add", [y, wide], BATCH, 32, in_place=1), precision="amp")
    assert (kernels[-1].kind, kernels[-1].out_bytes) == ("elementwise", 2)


def test_images_in_channels_last_order_are_told_apart() -> None:
    s = Sketch()
    y = s.conv(s.input(BATCH, 8, 4, 4), s.weight(8, 8, 3, 3), BATCH, 8, 4, 4)
    y = s.call("nn.relu", [y], BATCH, 8, 4, 4)
    assert not any(k.images_last for k in eager(s, y))
    assert all(k.images_last for k in eager(s, y, channels_last=True))


def test_a_part_of_the_channels_is_copied_for_a_convolution() -> None:
    s = Sketch()
    part = s.call("strided_slice", [s.input(BATCH, 16, 4, 4)], BATCH, 8, 4, 4, axes=(1,),
                  begin=(0,), end=(8,), strides=(1,))  # fmt: skip
    y = s.conv(part, s.weight(8, 8, 3, 3), BATCH, 8, 4, 4)
    assert kinds(eager(s, y)) == ["copy", "conv_spatial"]


def normed(s: Sketch, x: int) -> int:
    affine = [s.weight(8), s.weight(8)]
    return s.call("group_norm", [x, *affine], BATCH, 8, 4, 4, num_groups=2)


def test_a_group_norm_is_three_kernels_that_wait_for_each_other() -> None:
    s = Sketch()
    kernels = eager(s, normed(s, s.input(BATCH, 8, 4, 4)))
    assert kinds(kernels) == ["group_norm", "broadcast", "broadcast"]
    assert [k.sources for k in kernels] == [(), (0,), (1,)]
    image = 4 * 2 * 8 * 4 * 4
    assert [k.read_bytes for k in kernels] == [image, 4 * 2 * 8, image]
    assert [k.write_bytes for k in kernels] == [2 * 4 * 2 * 2, 4 * 2 * 8, image]
    assert (kernels[0].m, kernels[0].n) == (2 * 2, 8 / 2 * 4 * 4)
    s = Sketch()
    (fused,) = eager(s, normed(s, s.input(BATCH, 8, 4, 4)), mode="compiled")
    assert fused.kind == "group_norm"


def test_autocast_widens_a_norm_that_timm_keeps_in_half_precision() -> None:
    s = Sketch()
    x = s.conv(s.input(BATCH, 8, 4, 4), s.weight(8, 8, 1, 1), BATCH, 8, 4, 4)
    y = s.conv(normed(s, x), s.weight(8, 8, 1, 1), BATCH, 8, 4, 4)
    wide, narrow, other = (
        eager(s, y, precision="amp", kept_half=kept)
        for kept in ((), ("group_norms",), ("layer_norms",))
    )
    norm, image = ["group_norm", "broadcast", "broadcast"], 2 * 8 * 4 * 4
    layer = ["cast", "cast", "conv_pointwise"]
    assert kinds(wide) == kinds(other) == [*layer, "cast", *norm, *layer]
    assert kinds(narrow) == [*layer, *norm, "cast", "conv_pointwise"]
    for kernels, width in ((wide, 4), (narrow, 2)):
        *_, scaled = (k for k in kernels if k.kind == "broadcast")
        assert (scaled.read_bytes, scaled.write_bytes) == (width * image, width * image)
    assert kinds(eager(s, y, precision="fp16", kept_half=("group_norms",))) == kinds(
        eager(s, y, precision="fp16")
    )


@pytest.mark.parametrize(("side", "turned"), [(3, True), (1, False)])
def test_norms_take_images_channels_first_and_windows_channels_last(
    side: int, turned: bool
) -> None:
    s = Sketch()
    y = normed(s, s.input(BATCH, 8, 4, 4))
    y = s.conv(y, s.weight(8, 8, side, side), BATCH, 8, 4, 4)
    kernels = eager(s, y, channels_last=True)
    copies = ["copy"] if turned else []
    norm = ["copy", "group_norm", "broadcast", "broadcast"]
    assert kinds(kernels)[:-1] == [*norm, *copies]
    assert kernels[-1].images_last == turned


def test_an_instance_norm_in_half_precision_is_two_kernels() -> None:
    s = Sketch()
    y = s.call("instance_norm", [s.input(BATCH, 8, 4, 4)], BATCH, 8, 4, 4)
    assert kinds(eager(s, y)) == ["group_norm"]
    assert kinds(eager(s, y, precision="fp16")) == ["group_norm", "broadcast"]
    assert kinds(eager(s, y, channels_last=True)) == ["copy", "group_norm"]


def test_compiled_layers_keep_their_place_between_streams() -> None:
    s = Sketch()
    y = s.conv(s.input(BATCH, 8, 4, 4), s.weight(8, 8, 3, 3), BATCH, 8, 4, 4)
    y = s.call("exp", [s.call("nn.relu", [y], BATCH, 8, 4, 4)], BATCH, 8, 4, 4)
    z = s.conv(y, s.weight(8, 8, 3, 3), BATCH, 8, 4, 4)
    z = s.call("add", [s.call("tanh", [z], BATCH, 8, 4, 4), y], BATCH, 8, 4, 4)
    kernels = eager(s, z, mode="compiled")
    assert len(kernels) == 4
    assert [k.sources for k in kernels] == [(), (0,), (1,), (1, 2)]


def test_a_slice_viewed_as_images_is_cast_and_resized_channels_last() -> None:
    s = Sketch()
    tokens = s.call(
        "strided_slice", [s.input(BATCH, 50, 64)], BATCH, 49, 64, axes=[1], begin=[1], end=[50]
    )
    turned = s.call("permute_dims", [tokens], BATCH, 64, 49, axes=(0, 2, 1))
    images = s.call("reshape", [turned], BATCH, 64, 7, 7)
    larger = s.call("aten.upsample_bilinear2d", [images], BATCH, 64, 14, 14)
    for precision, expected in (("fp32", ["copy", "resize"]), ("fp16", ["copy", "resize"])):
        kernels = eager(s, larger, precision=precision)
        assert kinds(kernels) == expected
        assert kernels[-1].images_last
        assert kernels[-1].serial == 0
