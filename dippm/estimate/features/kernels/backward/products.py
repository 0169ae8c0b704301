"""Gradients of matrix products: two products, one for each operand."""

from __future__ import annotations

from math import prod

from dippm.estimate.features.kernels.backward.gradients import Gradients
from dippm.estimate.features.kernels.backward.tape import Step
from dippm.model.graph.strides import dense_strides, view_strides

MATRIX = 2


def matmul(g: Gradients, step: Step, gradient: int) -> None:
    """Launch dA = dY Bᵀ and dB = Aᵀ dY; leading axes that an operand lacks are summed by products.

    Autograd keeps both operands as the product read them.
    """
    left, right = step.call.inputs[:2]
    run = g.run
    wants_left, wants_right = g.wants(left), g.wants(right)
    if len(run.tensor(right).shape) == 1 or len(run.tensor(left).shape) == 1:
        _with_vector(g, step, gradient)
        return
    is_matrix = len(run.tensor(right).shape) == MATRIX
    depth = run.kernels[step.kernel].k
    with g.towards(left):
        gradient = _rows(g, gradient) if is_matrix else _batch(g, gradient)
    if wants_left:
        weight = _turned(g, _matrix(g, g.kept(right), int(depth)) if is_matrix else g.kept(right))
        shape = (*run.tensor(gradient).shape[:-1], run.tensor(weight).shape[-1])
        with g.towards(left):
            made = g.multiply(gradient, weight, shape, k=float(run.tensor(gradient).shape[-1]))
            if is_matrix:
                made = g.reshaped(made, run.tensor(left).shape)
        g.give(left, made)
    if wants_right:
        with g.towards(right):
            held = g.kept(left)
            held = _turned(g, _rows(g, held) if is_matrix else held)
            shape = (*_leading(g, held, gradient), run.tensor(held).shape[-2])
            shape = (*shape, run.tensor(gradient).shape[-1])
            made = g.multiply(held, gradient, shape, k=float(run.tensor(gradient).shape[-2]))
        g.give(right, made)


def _with_vector(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the two passes of a product with a vector."""
    left, right = step.call.inputs[:2]
    for position, other in ((left, right), (right, left)):
        if g.wants(position):
            shape = g.run.tensor(left if g.run.tensor(left).size > 1 else right).shape
            with g.towards(position):
                made = g.call("multiply", (gradient, g.kept(other)), shape)
            g.give(position, made)


def _matrix(g: Gradients, position: int, depth: int) -> int:
    """Return a weight as k × n; a graph without a file only knows how many elements it has."""
    shape = g.run.tensor(position).shape
    if shape[0] == depth:
        return position
    size = g.run.tensor(position).size // depth
    return g.viewed(position, (depth, size), dense_strides((depth, size)))


def _turned(g: Gradients, position: int) -> int:
    axes = list(range(len(g.run.tensor(position).shape)))
    return g.permuted(position, (*axes[:-2], axes[-1], axes[-2]))


def _rows(g: Gradients, position: int) -> int:
    shape = g.run.tensor(position).shape
    return g.reshaped(position, (prod(shape[:-1]), shape[-1]))


def _batch(g: Gradients, position: int) -> int:
    """Return a gradient as matrices one after another, copied once for both products."""
    shape, strides = g.run.tensor(position).shape, g.run.state(position).strides
    batch = shape[:-2]
    if len(batch) > 1 and view_strides(batch, strides[:-2], (prod(batch),)) is None:
        return g.dense(position, dense_strides(shape))
    return position


def _leading(g: Gradients, left: int, right: int) -> tuple[int, ...]:
    a, b = (g.run.tensor(position).shape[:-2] for position in (left, right))
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    shorter = (1,) * (len(longer) - len(shorter)) + shorter
    return tuple(map(max, longer, shorter))
