"""Gradients of norms: sums over what was normed, then the gradient of each element."""

from __future__ import annotations

from math import prod

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.backward.gradients import Gradients
from dippm.estimate.features.kernels.backward.tape import Step
from dippm.estimate.features.kernels.streaming import row_length
from dippm.model.graph.strides import dense_strides

STATISTIC = 4
"""Bytes of a mean or of a deviation; they are float32 whatever the images are."""
FLOPS = 8
"""Operations for each element of a gradient through a norm."""


def batch_norm(g: Gradients, step: Step, gradient: int) -> None:
    """Launch one kernel of cuDNN, which reads gradient and images for the sums, then again."""
    source = step.call.inputs[0]
    image = g.kept(source)
    channels = g.run.tensor(source).shape[1]
    g.keep("statistics", 2.0 * STATISTIC * channels)
    kernel = _kernel(g, step, "batch_norm", (gradient, image), float(channels))
    kernel = kernel._replace(
        read_bytes=2.0 * kernel.read_bytes, weight_bytes=5.0 * STATISTIC * channels
    )
    width, strides = g.run.state(image).width, g.run.state(image).strides
    with g.towards(source):
        made = g.launch(kernel, (gradient, image), g.run.tensor(source).shape, width, strides)
    g.give(source, made)


def layer_norm(g: Gradients, step: Step, gradient: int) -> None:
    """Launch a kernel for the elements, another for the sums over rows that weights need."""
    source, run = step.call.inputs[0], g.run
    shape = run.tensor(source).shape
    gradient = g.dense(gradient, dense_strides(shape))
    image = g.dense(g.original(source), dense_strides(shape))
    length = row_length(run, "layer_norm", source, shape)
    rows = prod(shape) / max(length, 1.0)
    g.keep("statistics", 2.0 * STATISTIC * rows)
    kernel = _kernel(g, step, "layer_norm", (gradient, image), length)
    kernel = kernel._replace(
        read_bytes=kernel.read_bytes + 2.0 * STATISTIC * rows, weight_bytes=STATISTIC * length
    )
    width = run.state(image).width
    if g.wants(source):
        with g.towards(source):
            made = g.launch(kernel, (gradient, image), shape, width)
        g.give(source, made)
    sums = kernel._replace(
        write_bytes=2.0 * STATISTIC * length, weight_bytes=0.0, part="backward_weight"
    )
    run.part = "backward_weight"
    g.launch(sums, (gradient, image), (2, int(length)), STATISTIC)
    run.part = "backward_input"


def group_norm(g: Gradients, step: Step, gradient: int) -> None:
    """Launch sums within channels, factors of groups, the elements, and sums over the batch."""
    source, run = step.call.inputs[0], g.run
    image = g.kept(source)
    shape = run.tensor(source).shape
    strides = run.state(image).strides
    gradient = g.dense(gradient, strides)
    channels = float(prod(shape[:2]))
    g.keep("statistics", 2.0 * STATISTIC * shape[0])
    kernel = _kernel(g, step, "group_norm", (gradient, image), float(shape[-1]))
    sums = kernel._replace(write_bytes=2.0 * STATISTIC * channels)
    small = kernel._replace(
        flops=4.0 * channels,
        read_bytes=2.0 * STATISTIC * channels,
        write_bytes=2.0 * STATISTIC * channels,
        m=channels,
        n=1.0,
        launches=2,
    )
    width = run.state(image).width
    made = g.launch(sums, (gradient, image), (int(channels), 2), STATISTIC)
    if g.wants(source):
        g.launch(small, (made,), (int(channels), 2), STATISTIC)
        with g.towards(source):
            result = g.launch(kernel, (gradient, image), shape, width, strides)
        g.give(source, result)
    run.part = "backward_weight"
    g.launch(small._replace(launches=1), (made,), (shape[1], 2), STATISTIC)
    run.part = "backward_input"


def softmax(g: Gradients, step: Step, gradient: int) -> None:
    """Launch one kernel over gradient and result, which writes the type of the argument.

    Autograd keeps the result.
    """
    run, source = g.run, step.call.inputs[0]
    result = g.result(step.call.outputs[0])
    shape = run.tensor(result).shape
    gradient = g.dense(gradient, dense_strides(shape))
    length = row_length(run, "softmax", source, shape)
    width = step.given[source].width
    kernel = _kernel(g, step, "softmax", (gradient, result), length)
    kernel = kernel._replace(write_bytes=float(width * run.tensor(result).size), out_bytes=width)
    with g.towards(source):
        made = g.launch(kernel, (gradient, result), shape, width)
    g.give(source, made)


def _kernel(
    g: Gradients, step: Step, kind: str, operands: tuple[int, int], length: float
) -> Kernel:
    """Return a kernel that reads two tensors of one shape and writes a third."""
    run = g.run
    gradient, held = operands
    size, width = run.tensor(held).size, run.state(held).width
    kernel = Kernel.stream(step.call.node, kind, size, run.state(gradient).width, width)
    return kernel._replace(
        flops=float(FLOPS * size),
        read_bytes=float(sum(run.stored(p) * run.state(p).width for p in operands)),
        m=size / max(length, 1.0),
        n=length,
        images_last=run.kernels[step.kernel].images_last,
    )
