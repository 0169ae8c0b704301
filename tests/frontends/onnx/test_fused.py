"""Operators that runtimes fuse: each counts what its pieces would."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import dippm.model.graph

MICROSOFT = "com.microsoft"
STEPS, WIDTH, HEADS = 10, 64, 8
TOKENS = [("x", ["N", STEPS, WIDTH])]


@pytest.fixture
def built(convert, make):
    """The graph of one node at batch 1."""

    def build(node, inputs, outputs=("y",), shapes=None, **contents):
        model = make(
            [node], inputs, [(name, None) for name in outputs], domains=[MICROSOFT], **contents
        )
        return dippm.model.graph.build(convert(model, shapes)).at_batch(1)

    return build


def shapes(found):
    return [tensor.shape for tensor in found.outputs]


def test_attention_with_sizes_of_its_own(built):
    node = helper.make_node(
        "Attention", ["x", "w", "b"], ["y"], domain=MICROSOFT, num_heads=HEADS,
        qkv_hidden_sizes=[32, 32, 64],
    )  # fmt: skip
    found = built(node, TOKENS, weights={"w": (WIDTH, 128), "b": (128,)})
    assert shapes(found) == [(1, STEPS, 64)]
    assert found.macs == STEPS * WIDTH * 128 + STEPS * STEPS * (32 + 64)


def test_attention_with_a_past(built):
    node = helper.make_node(
        "Attention", ["x", "w", "b", "", "past"], ["y", "present"], domain=MICROSOFT,
        num_heads=HEADS,
    )  # fmt: skip
    inputs = [*TOKENS, ("past", [2, "N", HEADS, 7, WIDTH // HEADS])]
    weights = {"w": (WIDTH, 3 * WIDTH), "b": (3 * WIDTH,)}
    found = built(node, inputs, ("y", "present"), weights=weights)
    assert shapes(found) == [(1, STEPS, WIDTH), (2, 1, HEADS, 17, 8)]
    assert found.macs == STEPS * WIDTH * 3 * WIDTH + 2 * STEPS * 17 * WIDTH


def test_attention_with_a_bias_on_its_inputs(built):
    node = helper.make_node(
        "MultiHeadAttention", ["x", "k", "v", "b"], ["y"], domain=MICROSOFT, num_heads=HEADS
    )
    inputs = [*TOKENS, ("k", ["N", 20, WIDTH]), ("v", ["N", 20, WIDTH])]
    found = built(node, inputs, weights={"b": (3 * WIDTH,)})
    assert shapes(found) == [(1, STEPS, WIDTH)]
    assert found.macs == 2 * STEPS * 20 * WIDTH


@pytest.mark.parametrize("is_packed", [False, True])
def test_grouped_attention_with_a_cache(built, is_packed):
    """Two heads of keys for eight of queries, seven steps in the cache."""
    size, names = WIDTH // HEADS, ["x", "", ""] if is_packed else ["x", "k", "v"]
    node = helper.make_node(
        "GroupQueryAttention", [*names, "pk", "pv", "lengths", "total"], ["y", "nk", "nv"],
        domain=MICROSOFT, num_heads=HEADS, kv_num_heads=2,
    )  # fmt: skip
    width = WIDTH + 4 * size if is_packed else WIDTH
    inputs = [("x", ["batch", STEPS, width])]
    if not is_packed:
        inputs += [(name, ["batch", STEPS, 2 * size]) for name in ("k", "v")]
    inputs += [(name, ["batch", 2, 7, size]) for name in ("pk", "pv")]
    inputs += [("lengths", ["batch"], TensorProto.INT32), ("total", [], TensorProto.INT32)]
    found = built(node, inputs, ("y", "nk", "nv"))
    assert shapes(found) == [(1, STEPS, WIDTH), (1, 2, 17, size), (1, 2, 17, size)]
    assert found.macs == 2 * STEPS * 17 * WIDTH


def test_attention_of_a_newer_opset_with_fewer_heads_of_keys(built):
    node = helper.make_node("Attention", ["x", "k", "v"], ["y"], q_num_heads=HEADS, kv_num_heads=2)
    size = WIDTH // HEADS
    inputs = [*TOKENS, ("k", ["N", 20, 2 * size]), ("v", ["N", 20, 2 * size])]
    found = built(node, inputs, opset=24)
    assert shapes(found) == [(1, STEPS, WIDTH)]
    assert found.macs == 2 * STEPS * 20 * WIDTH


def test_a_file_of_a_newer_opset_is_read_as_far_as_its_operators_are_known(built):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    assert built(node, TOKENS, weights={"w": (WIDTH, 5)}, opset=26).macs == STEPS * WIDTH * 5


def test_embeddings_with_their_norm(built):
    names = ["ids", "kinds", "words", "places", "segments", "gamma", "beta"]
    node = helper.make_node("EmbedLayerNormalization", names, ["y", "mask"], domain=MICROSOFT)
    inputs = [(name, ["N", STEPS], TensorProto.INT32) for name in ("ids", "kinds")]
    tables = {"words": (100, WIDTH), "places": (64, WIDTH), "segments": (2, WIDTH)}
    found = built(node, inputs, weights={**tables, "gamma": (WIDTH,), "beta": (WIDTH,)})
    assert shapes(found) == [(1, STEPS, WIDTH)]
    assert found.histogram()["layer_norm"] == 1
    assert found.histogram()["embedding"] == 2


def test_group_norm_with_channels_last(built):
    node = helper.make_node(
        "GroupNorm", ["x", "g", "g"], ["y"], domain=MICROSOFT, groups=4, activation=1
    )
    found = built(node, [("x", ["N", 6, 6, 16])], weights={"g": (16,)})
    assert shapes(found) == [(1, 6, 6, 16)]
    assert found.histogram()["group_norm"] == 1
    assert found.histogram()["silu"] == 1


def test_convolution_with_sum_and_activation(built):
    node = helper.make_node(
        "FusedConv", ["x", "w", "b", "x"], ["y"], domain=MICROSOFT, activation="Relu",
        pads=[1, 1, 1, 1],
    )  # fmt: skip
    found = built(node, [("x", ["N", 4, 8, 8])], weights={"w": (4, 4, 3, 3), "b": (4,)})
    assert found.histogram() == {"conv2d": 1, "add": 1, "relu": 1}
    assert found.macs == 8 * 8 * 4 * 36


def test_numbers_of_products_of_bytes_with_scales(built):
    node = helper.make_node(
        "MatMulIntegerToFloat", ["x", "w", "s", "s", "", "", "b"], ["y"], domain=MICROSOFT
    )
    found = built(
        node, [("x", ["N", STEPS, WIDTH], TensorProto.UINT8)], weights={"b": (5,)},
        constants={"w": np.ones((WIDTH, 5), np.int8), "s": np.float32(0.1)},
    )  # fmt: skip
    assert found.macs == STEPS * WIDTH * 5
    assert found.outputs[0].dtype == "float32"


def test_a_deformable_convolution(built):
    node = helper.make_node("DeformConv", ["x", "w", "o", "", "m"], ["y"], pads=[1, 1, 1, 1])
    inputs = [("x", ["N", 4, 8, 8]), ("o", ["N", 18, 8, 8]), ("m", ["N", 9, 8, 8])]
    found = built(node, inputs, weights={"w": (6, 4, 3, 3)}, opset=19)
    assert found.histogram() == {"deform_conv2d": 1}
    assert found.macs == 8 * 8 * 6 * 36
    assert len(found.nodes[0].in_shapes) == 3


@pytest.mark.parametrize("count", [100, "K"], ids=["given", "open"])
def test_regions_of_interest_are_no_batch(built, count):
    node = helper.make_node("RoiAlign", ["x", "rois", "b"], ["y"], output_height=7, output_width=7)
    inputs = [("x", [1, 8, 32, 32]), ("rois", [count, 4]), ("b", [count], TensorProto.INT64)]
    given = None if count == 100 else "rois=fixed:100,4;b=fixed:100"
    found = built(node, inputs, shapes=given)
    assert found.histogram() == {"roi_align": 1}
    assert not found.unknown_ops
    assert shapes(found) == [(100, 8, 7, 7)]


@pytest.mark.parametrize(
    ("operator", "given", "name"),
    [
        ("LRN", {"size": 5}, "local_response_norm"),
        ("Shrink", {}, "threshold"),
        ("Hardmax", {"axis": 1}, "softmax"),
        ("Acosh", {}, "acosh"),
        ("EyeLike", {}, "create"),
    ],
)
def test_rare_operators_have_a_name(built, operator, given, name):
    sizes = [1, 8] if operator == "EyeLike" else ["N", 8, 6, 6]
    found = built(helper.make_node(operator, ["x"], ["y"], **given), [("x", sizes)])
    assert set(found.histogram()) == {name}
