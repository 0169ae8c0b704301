"""R4 and R5: channels last becomes channels first, identities vanish, pools have one name."""

from __future__ import annotations

import pytest

from tests.unit.graph.sketch import BATCH, Sketch, ops


def first(values: list[str] | None = None):
    s = Sketch()
    x = s.input(BATCH, 3, 32, 32)
    y = s.conv(x, s.weight(8, 3, 3, 3), BATCH, 8, 32, 32)
    y = s.call("nn.relu", [y], BATCH, 8, 32, 32)
    z = s.conv(y, s.weight(8, 8, 3, 3), BATCH, 8, 32, 32)
    y = s.call("add", [y, z], BATCH, 8, 32, 32)
    y = s.call("concat", [y, z], BATCH, 16, 32, 32, axis=1)
    y = s.call("aten.adaptive_avg_pool2d", [y], BATCH, 16, 1, 1, output_size=(1, 1))
    y = s.call("reshape", [y], BATCH, 16)
    return s.graph(s.call("matmul", [y, s.weight(16, 10)], BATCH, 10))


def last():
    s = Sketch()
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    x = s.input(BATCH, 32, 32, 3)
    x = s.call("nn.pad", [x], BATCH, 34, 34, 3, pad_width=(0, 0, 1, 1, 1, 1, 0, 0))
    padding = (0, 0, 0, 0)
    y = s.conv(x, s.weight(3, 3, 3, 8), BATCH, 32, 32, 8, padding=padding, **layout)
    y = s.call("add", [y, s.weight(8)], BATCH, 32, 32, 8)
    y = s.call("nn.relu", [y], BATCH, 32, 32, 8)
    z = s.conv(y, s.weight(3, 3, 8, 8), BATCH, 32, 32, 8, **layout)
    y = s.call("add", [y, z], BATCH, 32, 32, 8)
    y = s.call("concat", [y, z], BATCH, 32, 32, 16, axis=-1)
    y = s.call("mean", [y], BATCH, 16, axis=(1, 2), keepdims=0)
    return s.graph(s.call("matmul", [y, s.weight(16, 10)], BATCH, 10))


def test_channels_last_gives_the_nodes_of_channels_first():
    expected, found = first(), last()
    assert ops(expected) == [
        "conv2d", "relu", "conv2d", "add", "concat", "global_avg_pool", "reshape", "dense",
    ]  # fmt: skip
    assert found.nodes[0].op == "reshape"  # the layout of the input, a view
    assert found.nodes[1:] == expected.nodes
    assert found.macs == expected.macs


def test_inverse_permutations_cancel():
    s = Sketch()
    x = s.input(BATCH, 4, 5, 6)
    y = s.call("permute_dims", [x], BATCH, 5, 6, 4, axes=(0, 2, 3, 1))
    y = s.call("nn.gelu", [y], BATCH, 5, 6, 4)
    y = s.call("permute_dims", [y], BATCH, 4, 5, 6, axes=(0, 3, 1, 2))
    assert ops(s.graph(y)) == ["gelu"]


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("aten.dropout", {"p": 0.5}),
        ("aten.contiguous", {}),
        ("reshape", {}),
        ("broadcast_to", {}),
        ("strided_slice", {"arg1": (1,)}),
        ("nn.pad", {"pad_width": (0, 0, 0, 0)}),
        ("astype", {"dtype": "float32"}),
    ],
)
def test_identities_vanish(name: str, attributes: dict):
    s = Sketch()
    y = s.call(name, [s.input(BATCH, 8)], BATCH, 8, **attributes)
    assert ops(s.graph(s.call("nn.relu", [y], BATCH, 8))) == ["relu"]


def test_a_copy_is_told_from_a_view():
    s = Sketch()
    x = s.input(BATCH, 6, 8)
    y = s.call("permute_dims", [x], BATCH, 8, 6, axes=(0, 2, 1))
    copied = s.call("nn.relu", [s.call("reshape", [y], BATCH, 48)], BATCH, 48)
    graph = s.graph(copied)
    assert ops(graph) == ["transpose", "reshape", "relu"]
    assert graph.nodes[0].kernels == ("transpose",)
    assert graph.nodes[0].bytes_written == 4 * BATCH * 48
    assert graph.nodes[1].kernels == ()
    assert graph.nodes[1].bytes_written == 0


def test_a_transpose_that_only_a_product_reads_moves_nothing():
    s = Sketch()
    a, b = s.input(BATCH, 6, 8), s.input(BATCH, 6, 8)
    t = s.call("permute_dims", [b], BATCH, 8, 6, axes=(0, 2, 1))
    graph = s.graph(s.call("matmul", [a, t], BATCH, 6, 6))
    assert ops(graph) == ["transpose", "batch_matmul"]
    assert graph.nodes[0].kernels == ()
    assert graph.nodes[1].attributes == {"m": 6, "n": 6, "k": 8}
