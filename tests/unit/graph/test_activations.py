"""R6: activations get their names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.graph.sketch import BATCH, Sketch, ops

SHAPE = (BATCH, 64)


def binary(s: Sketch, op: str, a: int, b: int) -> int:
    return s.call(op, [a, b], *SHAPE)


def unary(s: Sketch, op: str, a: int, **attributes: float) -> int:
    return s.call(op, [a], *SHAPE, **attributes)


def gelu_erf(s: Sketch, x: int) -> int:
    inner = binary(s, "divide", x, s.number(1.4142135))
    gate = binary(s, "add", unary(s, "erf", inner), s.number(1.0))
    return binary(s, "multiply", binary(s, "multiply", x, gate), s.number(0.5))


def gelu_half_first(s: Sketch, x: int) -> int:
    inner = binary(s, "multiply", x, s.number(0.70710678))
    gate = binary(s, "add", s.number(1.0), unary(s, "erf", inner))
    return binary(s, "multiply", binary(s, "multiply", s.number(0.5), x), gate)


def gelu_erfc(s: Sketch, x: int) -> int:
    inner = binary(s, "multiply", unary(s, "negative", x), s.number(0.70710678))
    half = binary(s, "multiply", x, s.number(0.5))
    return binary(s, "multiply", half, unary(s, "tf.Erfc", inner))


def gelu_tanh(s: Sketch, x: int) -> int:
    cube = binary(s, "power", x, s.number(3.0))
    inner = binary(s, "add", x, binary(s, "multiply", cube, s.number(0.044715)))
    gate = unary(s, "tanh", binary(s, "multiply", inner, s.number(0.79788456)))
    half = binary(s, "multiply", x, s.number(0.5))
    return binary(s, "multiply", half, binary(s, "add", gate, s.number(1.0)))


def silu(s: Sketch, x: int) -> int:
    return binary(s, "multiply", x, unary(s, "sigmoid", x))


def hard_swish(s: Sketch, x: int) -> int:
    gate = unary(s, "clip", binary(s, "add", x, s.number(3.0)), arg1=0.0, arg2=6.0)
    return binary(s, "divide", binary(s, "multiply", x, gate), s.number(6.0))


def hard_swish_by_gate(s: Sketch, x: int) -> int:
    gate = unary(s, "clip", binary(s, "add", x, s.number(3.0)), arg1=0.0, arg2=6.0)
    return binary(s, "multiply", x, binary(s, "multiply", gate, s.number(1 / 6)))


def mish(s: Sketch, x: int) -> int:
    return binary(s, "multiply", x, unary(s, "tanh", unary(s, "aten.softplus", x)))


def softplus(s: Sketch, x: int) -> int:
    return unary(s, "log", binary(s, "add", unary(s, "exp", x), s.number(1.0)))


def relu6(s: Sketch, x: int) -> int:
    return binary(s, "minimum", unary(s, "nn.relu", x), s.number(6.0))


def sigmoid(s: Sketch, x: int) -> int:
    exp = unary(s, "exp", unary(s, "negative", x))
    return binary(s, "divide", s.number(1.0), binary(s, "add", exp, s.number(1.0)))


CASES = [
    ("gelu", gelu_erf),
    ("gelu", gelu_half_first),
    ("gelu", gelu_erfc),
    ("gelu", gelu_tanh),
    ("silu", silu),
    ("hard_swish", hard_swish),
    ("hard_swish", hard_swish_by_gate),
    ("mish", mish),
    ("softplus", softplus),
    ("relu6", relu6),
    ("sigmoid", sigmoid),
]


@pytest.mark.parametrize(("name", "spell"), CASES, ids=lambda c: getattr(c, "__name__", c))
def test_a_spelling_becomes_one_node(name: str, spell: Callable[[Sketch, int], int]):
    sketch = Sketch()
    graph = sketch.graph(spell(sketch, sketch.input(*SHAPE)))
    assert ops(graph) == [name]
    assert len(graph.nodes[0].absorbed) >= 2
    assert graph.nodes[0].kernels == graph.nodes[0].absorbed


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("nn.relu", "relu"),
        ("aten.hardswish", "hard_swish"),
        ("onnx.HardSigmoid", "hard_sigmoid"),
        ("nn.leakyrelu", "leaky_relu"),
        ("tf.LeakyRelu", "leaky_relu"),
        ("onnx.Mish", "mish"),
        ("nn.gelu_tanh", "gelu"),
    ],
)
def test_dialects_share_one_name(raw: str, name: str):
    sketch = Sketch()
    graph = sketch.graph(unary(sketch, raw, sketch.input(*SHAPE)))
    assert ops(graph) == [name]
    assert graph.nodes[0].kernels == (name,)


def test_a_gate_on_another_tensor_is_not_silu():
    sketch = Sketch()
    x, y = sketch.input(*SHAPE), sketch.input(*SHAPE)
    graph = sketch.graph(binary(sketch, "multiply", x, unary(sketch, "sigmoid", y)))
    assert ops(graph) == ["sigmoid", "multiply"]
