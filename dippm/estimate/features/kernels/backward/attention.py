"""Gradients of fused attention: one kernel that makes the scores again."""

from __future__ import annotations

from math import prod

from dippm.estimate.features.kernels.backward.gradients import Gradients
from dippm.estimate.features.kernels.backward.tape import Step
from dippm.model.graph.strides import dense_in_order

WORK = 2.5
"""Products of the gradient for each of the forward pass: five for two."""
SUM_BYTES = 4


def attention(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the kernel; autograd keeps operands, result, and the sum of each row of scores.

    A mask's gradient has the size of the scores.
    """
    run, call = g.run, step.call
    forward = run.kernels[step.kernel]
    operands = [g.kept(p) for p in call.inputs if not run.tensor(p).is_number]
    result = g.result(call.outputs[0])
    width = forward.out_bytes
    rows = forward.copies * forward.m
    g.keep("sums", SUM_BYTES * rows)
    shapes = {p: run.tensor(p).shape for p in call.inputs}
    masks = [p for p in call.inputs[3:] if g.wants(p)]
    scores = forward.copies * forward.m * forward.n
    written = sum(prod(shapes[p]) for p in call.inputs[:3]) + len(masks) * scores
    kernel = forward._replace(
        flops=WORK * forward.flops,
        read_bytes=float(width * sum(map(run.stored, (*operands, result, gradient))))
        + SUM_BYTES * rows,
        write_bytes=float(width * written),
        weight_bytes=0.0,
        sources=(),
    )
    with g.towards(call.inputs[0]):
        run.emit(kernel, (*operands, result, gradient))
        made = len(run.kernels) - 1
    for position in call.inputs[:3]:
        shape, held = shapes[position], step.read[position]
        state = type(held)(width, dense_in_order(shape, held.strides), (made,))
        g.give(position, g.new(shape, state))
    for position in masks:
        batch, heads = (*run.tensor(call.outputs[0]).shape, 1, 1)[:2]
        whole = (batch, heads, int(forward.m), int(forward.n))
        mask = g.new(whole)
        run.make(mask, width)
        g.give(position, mask)
