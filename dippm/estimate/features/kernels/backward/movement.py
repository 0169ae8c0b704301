"""Gradients of what moves, joins, parts or repeats tensors: the way back."""

from __future__ import annotations

from math import prod

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.backward.gradients import Gradients, Step
from dippm.estimate.features.kernels.run import image_strides
from dippm.estimate.features.kernels.streaming import INDEX_WIDTH
from dippm.model.graph.strides import dense_strides

SORT_LAUNCHES = 5
"""Kernels with which a list of indices is sorted and its equal ones are found."""


def reshaped(g: Gradients, step: Step, gradient: int) -> None:
    """Follow the view back, or copy where there can be none."""
    source = step.call.inputs[0]
    shape = g.run.tensor(source).shape
    if prod(shape) != g.run.tensor(step.call.outputs[0]).size:  # pairs of numbers as complex ones
        g.give(source, g.viewed(gradient, shape, dense_strides(shape)))
        return
    with g.towards(source):
        made = g.reshaped(gradient, shape)
    g.give(source, made)


def transposed(g: Gradients, step: Step, gradient: int) -> None:
    """Turn the axes back, without a kernel."""
    order = step.call.attributes["permutation"]
    back = sorted(range(len(order)), key=lambda axis: order[axis])
    g.give(step.call.inputs[0], g.permuted(gradient, back))


def joined(g: Gradients, step: Step, gradient: int) -> None:
    """Give each argument its part, a view."""
    strides = g.run.state(gradient).strides
    for position in step.call.inputs:
        shape = g.run.tensor(position).shape
        if g.wants(position) and len(shape) == len(strides):
            g.give(position, g.viewed(gradient, shape, strides))
        elif g.wants(position):  # a stack
            axis = int(step.call.attributes.get("axis", 0)) % len(strides)
            left = tuple(stride for i, stride in enumerate(strides) if i != axis)
            g.give(position, g.viewed(gradient, shape, left))


def parted(g: Gradients, step: Step, gradients: list[int | None]) -> None:
    """Concatenate the gradients of parts, zeros for parts that were not used."""
    run, source = g.run, step.call.inputs[0]
    shape = run.tensor(source).shape
    if len(step.call.outputs) == 1:
        put_back(g, step, next(p for p in gradients if p is not None))
        return
    width = step.given[source].width
    with g.towards(source):
        parts = [
            g.fill(run.tensor(out).shape, width) if made is None else made
            for out, made in zip(step.call.outputs, gradients, strict=True)
        ]
        made = g.call("concat", parts, shape)
    g.give(source, made)


def put_back(g: Gradients, step: Step, gradient: int) -> None:
    """Copy a gradient into zeros in the size of the argument."""
    run, source = g.run, step.call.inputs[0]
    shape = run.tensor(source).shape
    if run.tensor(gradient).size == prod(shape):
        reshaped(g, step, gradient)
        return
    width = run.state(gradient).width
    with g.towards(source):
        zeros = g.fill(shape, width)
        size = run.tensor(gradient).size
        copy = Kernel.stream(step.call.node, "copy", size, width)
        row = float((run.tensor(gradient).shape or (1,))[-1])
        copy = copy._replace(
            read_bytes=float(width * run.stored(gradient)),
            strided=not run.is_dense(gradient),
            in_place=True,
            m=size / max(row, 1.0),
            n=row,
        )
        run.emit(copy, (zeros, gradient))
        run.make(zeros, width)
    g.give(source, zeros)


def transformed(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the transform back, which autograd keeps nothing for."""
    source = step.call.inputs[0]
    with g.towards(source):
        made = g.call(step.call.op, (gradient,), g.run.tensor(source).shape)
    g.give(source, made)


def written_over(g: Gradients, step: Step, gradient: int) -> int:
    """Copy the gradient of what was a view when a call wrote into it; return it.

    Autograd copies the gradient of the whole, then the part that was written, and puts the
    gradient of the part back.
    """
    run, shape = g.run, g.run.tensor(gradient).shape
    for _ in range(3):
        width, size = run.state(gradient).width, run.tensor(gradient).size
        kernel = Kernel.stream(step.call.node, "copy", size, width)
        with g.towards(step.call.inputs[0]):
            gradient = g.launch(kernel, (gradient,), shape, width)
    return gradient


def moved(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the move back: as many elements as the argument has."""
    run, source = g.run, step.call.inputs[0]
    shape = run.tensor(source).shape
    width = run.state(gradient).width
    kernels = [k for k in run.kernels[step.kernel : step.kernel + 1] if k.kind == "copy"]
    kernel = Kernel.stream(step.call.node, "copy", prod(shape), width)
    if kernels:
        kernel = kernel._replace(
            strided=kernels[0].strided,
            n=kernels[0].n,
            m=kernels[0].m,
            run=kernels[0].run,
            launches=kernels[0].launches,
        )
    with g.towards(source):
        made = g.launch(kernel, (gradient,), shape, width)
    g.give(source, made)


def resized(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the sum of each pixel's share."""
    run, source = g.run, step.call.inputs[0]
    shape = run.tensor(source).shape
    forward = run.kernels[step.kernel]
    width = run.state(gradient).width
    kernel = forward._replace(
        read_bytes=float(width * run.stored(gradient)),
        write_bytes=float(width * prod(shape)),
        in_bytes=width,
        out_bytes=width,
        sources=(),
    )
    strides = image_strides(run, source, shape)
    with g.towards(source):
        made = g.launch(kernel, (gradient,), shape, width, strides)
    g.give(source, made)


def looked_up(g: Gradients, step: Step, gradient: int) -> None:
    """Add the gradient into zeros at the indices, sorted first so that equal ones meet."""
    run, call = g.run, step.call
    table = call.inputs[0]
    if call.op == "embedding" and len(call.inputs) > 1 and not run.tensor(table).is_float:
        table = call.inputs[1]
    if not g.wants(table):
        return
    indices = [g.kept(p) for p in call.inputs if p != table and not run.tensor(p).is_number]
    many = max((run.tensor(p).size for p in indices), default=1)
    width = run.state(gradient).width
    with g.towards(table):
        zeros = g.fill(run.tensor(table).shape, width)
        sort = Kernel.stream(call.node, "reduction", many, INDEX_WIDTH, 2 * INDEX_WIDTH)
        sort = sort._replace(launches=SORT_LAUNCHES)
        run.emit(sort, indices)
        size = run.tensor(gradient).size
        kernel = Kernel.stream(call.node, "gather", size, width)
        kernel = kernel._replace(
            read_bytes=kernel.read_bytes + INDEX_WIDTH * many,
            in_place=True,
            n=float((run.tensor(gradient).shape or (1,))[-1]),
        )
        run.emit(kernel, (zeros, gradient, *indices))
        run.make(zeros, width)
    g.give(table, zeros)


def scattered(g: Gradients, step: Step, gradient: int) -> None:
    """Take the written part out of the gradient; the rest goes to what was written into."""
    run, call = g.run, step.call
    target, source = call.inputs[0], call.inputs[-1]
    if g.wants(target):
        with g.towards(target):
            shape = run.tensor(target).shape
            rest = g.call("identity", (gradient,), shape)
            kernel = Kernel.stream(call.node, "elementwise", run.tensor(source).size, 4)
            run.emit(kernel._replace(read_bytes=0.0, in_place=True), (rest,))
        g.give(target, rest)
    if source != target and g.wants(source):
        with g.towards(source):
            part = g.call("dynamic_slice", (gradient,), run.tensor(source).shape)
        g.give(source, part)


def repeated(g: Gradients, step: Step, gradient: int) -> None:
    """Sum over what was repeated."""
    g.give(step.call.inputs[0], gradient)


def spread(g: Gradients, step: Step, gradient: int, *, divides: bool) -> None:
    """Repeat a gradient over the axes that were reduced; a mean divides it on the way."""
    run, source = g.run, step.call.inputs[0]
    shape = run.tensor(source).shape
    kept = _kept_axes(step, shape, run.tensor(gradient).shape)
    held = run.state(gradient).strides
    strides = []
    for axis, size in enumerate(shape):
        along = kept.get(axis)
        is_reduced = along is None or run.tensor(gradient).shape[along] != size
        strides.append(0 if is_reduced or along is None else held[along])
    view = g.viewed(gradient, shape, tuple(strides))
    if divides:
        with g.towards(source):
            view = g.call("multiply", (view,), shape)
    g.give(source, view)


def picked(g: Gradients, step: Step, gradient: int) -> None:
    """Put the gradient of a loss where it took the likelihood of each sample's class."""
    run, source = g.run, step.call.inputs[0]
    shape, width = run.tensor(source).shape, step.given[source].width
    for position in step.call.inputs[1:2]:
        g.kept(position)
    with g.towards(source):
        zeros = g.fill(shape, width)
        g.call("gather", (zeros, gradient), shape[:1])
    g.give(source, zeros)


def _kept_axes(step: Step, shape: tuple[int, ...], reduced: tuple[int, ...]) -> dict[int, int]:
    """Return which axis of the result each axis of the argument became."""
    if len(reduced) == len(shape):
        return {axis: axis for axis in range(len(shape))}
    axes = step.call.attributes.get("axes", step.call.attributes.get("axis", ()))
    axes = axes if isinstance(axes, tuple | list) else (axes,)
    gone = {int(axis) % max(len(shape), 1) for axis in axes if isinstance(axis, int)}
    left = [axis for axis in range(len(shape)) if axis not in gone]
    return dict(zip(left, range(len(reduced)), strict=False)) if len(left) == len(reduced) else {}


def extreme(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the comparison with the result, the count of equals and the share of each."""
    run, source = g.run, step.call.inputs[0]
    shape = run.tensor(source).shape
    with g.towards(source):
        equal = g.call("multiply", (g.kept(source), g.result(step.call.outputs[0])), shape)
        share = g.call("reduce_sum", (equal,), run.tensor(gradient).shape)
        share = g.call("multiply", (gradient, share), run.tensor(gradient).shape)
        made = g.call("multiply", (share, equal), shape)
    g.give(source, made)


def length(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the direction, zeros without one, and its product with the gradient."""
    run, source = g.run, step.call.inputs[0]
    shape = run.tensor(source).shape
    with g.towards(source):
        result = g.result(step.call.outputs[0])
        way = g.call("divide", (g.kept(source), result), shape)
        zero = g.call("equal", (result,), run.tensor(result).shape)
        way = g.call("multiply", (way, zero), shape)
        made = g.call("multiply", (gradient, way), shape)
    g.give(source, made)


def variance(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the mean, the distances from it, and their products with the gradient."""
    run, source = g.run, step.call.inputs[0]
    shape, small = run.tensor(source).shape, run.tensor(gradient).shape
    with g.towards(source):
        held = g.kept(source)
        mean = g.call("reduce_mean", (held,), small)
        away = g.call("subtract", (held, mean), shape)
        scaled = g.call("multiply", (gradient,), small)
        made = g.call("multiply", (scaled, away), shape)
    g.give(source, made)


def pooled(g: Gradients, step: Step, gradient: int) -> None:
    """Launch one kernel; that of a maximum fills with zeros first and reads indices.

    Autograd keeps the argument, for its sizes, and the indices.
    """
    run, call = g.run, step.call
    source = call.inputs[0]
    image = g.kept(source)
    shape = run.tensor(source).shape
    strides = image_strides(run, image, shape)
    gradient = g.dense(gradient, image_strides(run, image, run.tensor(gradient).shape))
    forward, width = run.kernels[step.kernel], run.state(gradient).width
    size = run.tensor(gradient).size
    indices = 0.0
    if call.op == "max_pool":
        indices = float(INDEX_WIDTH * size)
        g.keep("indices", indices)
    kernel = forward._replace(
        read_bytes=float(width * size) + indices,
        write_bytes=float(width * prod(shape)),
        in_bytes=width,
        out_bytes=width,
        sources=(),
    )
    with g.towards(source):
        if indices:
            g.fill(shape, width)
        made = g.launch(kernel, (gradient,), shape, width, strides)
    g.give(source, made)
