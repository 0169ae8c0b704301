"""What other formats spell in steps is one call; what only looks like it stays as it is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.model.graph import build
from tests.unit.graph.sketch import BATCH, Sketch


def calls_of(s: Sketch, *outputs: int, **changed: object) -> list[str]:
    return [c.op for c in build(replace(s.raw(*outputs), **changed)).calls.calls]


def softmax_between_products(s: Sketch, query: int, key: int, value: int, *shape: int) -> int:
    """Return softmax(query · key) · value, of the given shape of scores."""
    scores = s.call("matmul", [query, key], *shape)
    weights = s.call("nn.softmax", [scores], *shape, axis=-1)
    return s.call("matmul", [weights, value], *shape[:-1], 16)


def test_attention_in_heads_is_one_call() -> None:
    s = Sketch()
    query, value = (s.input(BATCH, 4, 32, 16) for _ in range(2))
    key = s.input(BATCH, 4, 16, 32)
    out = softmax_between_products(s, query, key, value, BATCH, 4, 32, 32)
    graph = build(s.raw(out))
    assert [c.op for c in graph.calls.calls] == ["transpose", "attention"]
    shapes = [graph.calls.tensors[p].shape for p in graph.calls.calls[-1].inputs]
    assert shapes == [(BATCH, 4, 32, 16)] * 3
    assert "attention" not in calls_of(s, out, is_exported_by_pytorch=True)


def test_attention_of_another_rank_runs_in_steps() -> None:
    s = Sketch()
    query, value = (s.input(BATCH, 32, 16) for _ in range(2))
    out = softmax_between_products(s, query, s.input(BATCH, 16, 32), value, BATCH, 32, 32)
    assert calls_of(s, out) == ["matmul", "softmax", "matmul"]


def test_scores_of_a_layer_are_no_attention() -> None:
    s = Sketch()
    query, value = s.input(BATCH, 4, 32, 16), s.input(BATCH, 4, 8, 16)
    out = softmax_between_products(s, query, s.weight(16, 8), value, BATCH, 4, 32, 8)
    assert calls_of(s, out) == ["matmul", "softmax", "matmul"]


def test_a_bias_behind_a_reshape_belongs_to_its_product() -> None:
    s = Sketch()
    product = s.call("matmul", [s.input(BATCH, 32, 16), s.weight(16, 64)], BATCH, 32, 64)
    shaped = s.call("reshape", [product], BATCH, 32, 4, 16)
    out = s.call("add", [shaped, s.weight(4, 16)], BATCH, 32, 4, 16)
    graph = build(s.raw(out))
    assert [c.op for c in graph.calls.calls] == ["matmul", "add", "reshape"]
    assert graph.calls.tensors[graph.calls.calls[1].inputs[1]].shape == (64,)
    assert graph.calls.tensors[graph.calls.calls[-1].outputs[0]].shape == (BATCH, 32, 4, 16)


@pytest.mark.parametrize(("after", "expected"), [(1, ["conv2d"]), (2, ["pad", "conv2d"])])
def test_a_padding_with_equal_sides_belongs_to_its_convolution(
    after: int, expected: list[str]
) -> None:
    s = Sketch()
    size = 8 + 1 + after
    widths = (0, 0, 0, 0, 1, after, 1, after)
    image = s.call("nn.pad", [s.input(BATCH, 3, 8, 8)], BATCH, 3, size, size, pad_width=widths)
    shape = (BATCH, 4, size - 2, size - 2)
    out = s.conv(image, s.weight(4, 3, 3, 3), *shape, padding=(0, 0, 0, 0))
    graph = build(s.raw(out))
    assert [c.op for c in graph.calls.calls] == expected
    joined = (1,) * 4 if after == 1 else (0,) * 4
    assert graph.calls.calls[-1].attributes["padding"] == joined


def test_sums_with_zero_are_no_calls() -> None:
    """Paddle's operator for a scale and a shift writes both."""
    s = Sketch()
    scaled = s.call("multiply", [s.input(BATCH, 8), s.number(0.5)], BATCH, 8)
    out = s.call("add", [scaled, s.number(0.0)], BATCH, 8)
    assert calls_of(s, out) == ["multiply"]


def test_activations_write_over_what_nothing_else_reads() -> None:
    """As vision models of PyTorch ask for; the file does not say it."""
    s = Sketch()
    x = s.conv(s.input(BATCH, 3, 8, 8), s.weight(4, 3, 3, 3), BATCH, 4, 6, 6)
    once = s.call("nn.relu", [x], BATCH, 4, 6, 6)
    again = s.call("nn.relu", [once], BATCH, 4, 6, 6)
    out = s.call("add", [once, again], BATCH, 4, 6, 6)
    calls = build(s.raw(out)).calls.calls
    assert [(c.op, c.in_place) for c in calls if c.op == "relu"] == [
        ("relu", True),
        ("relu", False),
    ]
