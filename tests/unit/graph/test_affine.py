"""R2 and R10: biases and batch norms."""

from __future__ import annotations

import pytest

from tests.unit.graph.sketch import BATCH, Sketch, ops

IMAGE = (BATCH, 8, 16, 16)


def conv(sketch: Sketch) -> int:
    return sketch.conv(sketch.input(BATCH, 3, 16, 16), sketch.weight(8, 3, 3, 3), *IMAGE)


def plain():
    sketch = Sketch()
    return sketch.graph(conv(sketch))


def with_bias(shape: tuple[int, ...]):
    sketch = Sketch()
    bias = sketch.call("reshape", [sketch.weight(8)], *shape)
    return sketch.graph(sketch.call("add", [conv(sketch), bias], *IMAGE))


@pytest.mark.parametrize("shape", [(1, 8, 1, 1), (8, 1, 1)])
def test_a_bias_leaves_no_trace(shape):
    assert with_bias(shape).nodes == plain().nodes


def test_a_full_size_parameter_is_an_addition_not_a_bias():
    sketch = Sketch()
    position = sketch.weight(1, *IMAGE[1:])
    graph = sketch.graph(sketch.call("add", [conv(sketch), position], *IMAGE))
    assert ops(graph) == ["conv2d", "add"]
    assert graph.nodes[1].param_bytes == 4 * 8 * 16 * 16


def test_a_bias_behind_the_reshape_of_a_dense_layer():
    sketch = Sketch()
    x = sketch.input(BATCH * 7, 16)
    y = sketch.call("matmul", [x, sketch.weight(16, 32)], BATCH * 7, 32)
    y = sketch.call("reshape", [y], BATCH, 7, 32)
    y = sketch.call("add", [y, sketch.weight(32)], BATCH, 7, 32)
    assert ops(sketch.graph(y)) == ["dense", "reshape"]


def norm(sketch: Sketch, x: int) -> int:
    statistics = [sketch.weight(8) for _ in range(4)]
    return sketch.calls("nn.batch_norm", [x, *statistics], [IMAGE, (8,), (8,)], axis=1)[0]


def test_batch_norm_folds_into_its_convolution_and_is_remembered():
    sketch = Sketch()
    graph = sketch.graph(norm(sketch, conv(sketch)))
    assert graph.nodes == plain().nodes
    assert graph.nodes[0].absorbed == ("batch_norm",)
    assert graph.nodes[0].kernels == ("conv2d", "batch_norm")


def test_batch_norm_stays_if_the_convolution_has_another_reader():
    sketch = Sketch()
    y = conv(sketch)
    graph = sketch.graph(sketch.call("add", [norm(sketch, y), y], *IMAGE))
    assert ops(graph) == ["conv2d", "batch_norm", "add"]


def test_batch_norm_in_pieces_is_one_batch_norm():
    sketch = Sketch()
    y = conv(sketch)
    for op in ("subtract", "multiply", "multiply", "add"):
        y = sketch.call(op, [y, sketch.call("reshape", [sketch.weight(8)], 1, 8, 1, 1)], *IMAGE)
    graph = sketch.graph(y)
    assert graph.nodes == plain().nodes
    assert graph.nodes[0].absorbed == ("batch_norm",)


def test_layer_scale_is_a_kernel_of_its_own():
    sketch = Sketch()
    x = sketch.input(BATCH, 49, 16)
    y = sketch.call("matmul", [x, sketch.weight(16, 16)], BATCH, 49, 16)
    y = sketch.call("add", [y, sketch.weight(16)], BATCH, 49, 16)
    y = sketch.call("multiply", [y, sketch.weight(16)], BATCH, 49, 16)
    assert ops(sketch.graph(y)) == ["dense", "multiply"]
