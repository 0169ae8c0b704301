"""`training_step`: the kernels of a step, and what autograd keeps alive between its two passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from dippm.estimate.conditions import Attention, Optimizer, Precision
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.attention import in_steps
from dippm.estimate.features.kernels.backward import arithmetic, movement
from dippm.estimate.features.kernels.backward.arithmetic import elementwise, matmul
from dippm.estimate.features.kernels.backward.gradients import (
    NOT_DIFFERENTIABLE,
    Gradients,
    Step,
    Tape,
    checkpointed_bytes,
    recomputed,
)
from dippm.estimate.features.kernels.launch import walk
from dippm.estimate.features.kernels.optimizers import update
from dippm.estimate.features.kernels.run import Run, image_strides, images_last
from dippm.model.graph.calls import CallSequence
from dippm.model.graph.operators import operator
from dippm.model.graph.strides import dense_strides_like

# Gradients of fused attention: one kernel that makes the scores again.


WORK = 2.5
"""Products of the gradient for each of the forward pass: five for two."""
SUM_BYTES = 4


def attended(g: Gradients, step: Step, gradient: int) -> None:
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
        state = type(held)(width, dense_strides_like(shape, held.strides), (made,))
        g.give(position, g.new(shape, state))
    for position in masks:
        batch, heads = (*run.tensor(call.outputs[0]).shape, 1, 1)[:2]
        whole = (batch, heads, int(forward.m), int(forward.n))
        mask = g.new(whole)
        run.make(mask, width)
        g.give(position, mask)


# Gradients of recurrent layers: the steps backwards, then the weights.


def recurrent(g: Gradients, step: Step, gradient: int) -> None:
    """Launch a record for the arguments and one for the weights, each with the forward's work.

    Autograd keeps arguments, result and what cuDNN reserves: the gates of all steps.
    """
    run, call = g.run, step.call
    forward = run.kernels[step.kernel]
    source = call.inputs[0]
    held = [g.kept(p) for p in call.inputs]
    result = g.result(call.outputs[0])
    width = forward.out_bytes
    gates = max(1.0, forward.n and _gates(call.op)) * width * run.tensor(result).size
    g.keep("gates", gates)
    read = forward.read_bytes + gates + 2.0 * width * run.tensor(result).size
    weights = [p for p in call.inputs if run.tensor(p).roots]
    size = float(width * sum(run.tensor(p).size for p in weights))
    data = forward._replace(
        read_bytes=read, write_bytes=float(width * prod(run.tensor(source).shape)), sources=()
    )
    with g.towards(source):
        made = g.launch(data, (gradient, result, *held), run.tensor(source).shape, width)
    g.give(source, made)
    if weights:
        with g.towards(weights[0]):
            one_product = data._replace(weight_bytes=0.0, write_bytes=size, serial=0.0)
            run.emit(one_product._replace(inner_launches=0), (gradient, *held))
        maker = len(run.kernels) - 1
    for position in weights:
        tensor = run.tensor(position)
        made = g.new(tensor.shape)
        run.make(made, width)
        run.states[made].makers = (maker,)
        g.give(position, made)


def _gates(op: str) -> int:
    return {"lstm": 6, "gru": 5}.get(op, 1)


# Gradients of convolutions: a convolution for the images, one for the weights.


def convolution(g: Gradients, step: Step, gradient: int) -> None:
    """Launch both; each does the operations of the forward pass.

    Both read the gradient, in the order of the images; autograd keeps images and weights.
    """
    run, source, weight = g.run, step.call.inputs[0], step.call.inputs[1]
    forward = run.kernels[step.kernel]
    image, filters = g.original(source), g.kept(weight)
    shape, made_shape = run.tensor(source).shape, run.tensor(step.call.outputs[0]).shape
    gradient = g.dense(gradient, image_strides(run, image, made_shape))
    image = g.dense(image, image_strides(run, image, shape))
    width = forward.out_bytes
    plain = forward._replace(
        weight_bytes=0.0, images_last=images_last(run, image), sources=(), strided=False
    )
    pixels = float(shape[0] * prod(shape[2:]))
    if g.wants(source):
        kernel = plain._replace(
            read_bytes=float(width * run.tensor(gradient).size),
            weight_bytes=float(width * run.tensor(filters).size),
            write_bytes=float(width * prod(shape)),
            m=pixels,
            n=forward.k / forward.window,
            k=forward.n * forward.window,
        )
        strides = image_strides(run, image, shape)
        with g.towards(source):
            made = g.launch(kernel, (gradient, filters), shape, width, strides)
        g.give(source, made)
    if g.wants(weight):
        sizes = run.tensor(weight).shape
        kernel = plain._replace(
            read_bytes=float(width * (run.tensor(gradient).size + run.stored(image))),
            write_bytes=float(width * prod(sizes)),
            m=forward.k,
            n=forward.n,
            k=forward.m,
        )
        with g.towards(weight):
            made = g.launch(kernel, (gradient, image), sizes, width)
        g.give(weight, made)
    for bias in step.call.inputs[2:3]:
        g.give(bias, gradient)


Rule = Callable[[Gradients, Step, int], None]


def _mean(g: Gradients, step: Step, gradient: int) -> None:
    movement.spread(g, step, gradient, divides=True)


def _sum(g: Gradients, step: Step, gradient: int) -> None:
    movement.spread(g, step, gradient, divides=False)


BY_NAME: Mapping[str, Rule] = {
    "batch_norm": arithmetic.batch_norm,
    "layer_norm": arithmetic.layer_norm,
    "rms_norm": arithmetic.layer_norm,
    "group_norm": arithmetic.group_norm,
    "instance_norm": arithmetic.group_norm,
    "softmax": arithmetic.softmax,
    "log_softmax": arithmetic.softmax,
    "matmul": matmul,
    "transpose": movement.transposed,
    "reshape": movement.reshaped,
    "broadcast": movement.repeated,
    "tile": movement.repeated,
    "concat": movement.joined,
    "slice": movement.put_back,
    "dynamic_slice": movement.put_back,
    "resize": movement.resized,
    "embedding": movement.looked_up,
    "gather": movement.looked_up,
    "scatter": movement.scattered,
    "fft": movement.transformed,
    "nn.nll_loss": movement.picked,
    "reduce_mean": _mean,
    "global_avg_pool": _mean,
    "reduce_sum": _sum,
    "reduce_max": movement.extreme,
    "reduce_min": movement.extreme,
    "global_max_pool": movement.extreme,
    "reduce_norm": movement.length,
    "reduce_variance": movement.variance,
    "reduce_std": movement.variance,
}
"""Rules by canonical name; `split` has all its results at once and is no row."""
BY_KERNEL: Mapping[str, Rule] = {
    "convolution": convolution,
    "gemm": matmul,
    "batched_gemm": matmul,
    "attention": attended,
    "recurrent": recurrent,
    "pool": movement.pooled,
}
"""Rules by the column `kernel` of the operator table."""
HEADS = ("dense", "matmul")
INDEX_BYTES = 8
LOSS_COPIES = 3
"""Tensors of the result's size where the gradient of a mean square begins: the result, what it is
compared with or the factor of its gradient, and the gradient."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A step: forward, loss, gradients, update.

    Attributes:
        kernels: each with its part of the step, in execution order, but that those which
            checkpointing runs again stand before the update.
        saved_bytes: what autograd keeps from forward to backward: activations, their statistics
            and indices, and under autocast the half copies of weights; parameters are not in it.
        checkpointed_bytes: the most that is alive of it if every block is run again.
        parameters: elements of each parameter that is trained.
        saved_tensors: bytes of each tensor that the forward pass keeps, those of the loss left out,
            about in the order in which they are made.
        loss_bytes: what is alive where the backward pass begins and is not saved: the result, which
            the caller holds, and the tensors of its size that the gradient of the loss takes.
    """

    kernels: list[Kernel]
    saved_bytes: float
    checkpointed_bytes: float
    parameters: tuple[int, ...]
    saved_tensors: tuple[float, ...] = ()
    loss_bytes: float = 0.0


def training_step(
    sequence: CallSequence,
    precision: Precision = "fp32",
    *,
    optimizer: Optimizer = "sgd",
    channels_last: bool = False,
    attention: Attention = "fused",
    checkpointing: bool = False,
) -> TrainingStep:
    """Return what a step of eager PyTorch launches and keeps.

    Nothing is dropped. The loss is the cross-entropy of scores (see `_are_scores`); of another
    result it is the sum where time is counted, and the mean square where memory is. No gradient is
    scaled or clipped, and gradients are set to None between steps.

    Args:
        sequence: calls at the batch in question.
        precision: see `Conditions`; under autocast the backward pass follows the forward's types.
        optimizer: whose update ends the step.
        channels_last: images are held so.
        attention: see `launched`.
        checkpointing: every block is run again in the backward pass, see `blocks_of`.
    """
    if attention == "unfused":
        sequence = in_steps(sequence, precision)
    run = Run(sequence, precision, channels_last=channels_last, training=True)
    tape = Tape(run)
    walk(run, tape.record)
    sizes = _sizes(tape)
    if not tape.steps:
        return TrainingStep([], 0.0, 0.0, ())
    gradients = Gradients(tape)
    loss_bytes = _begin(gradients)
    of_loss = len(gradients.saved)
    run.autocast, run.part = False, "backward_input"
    for step in reversed(tape.steps):
        gradients.step = step
        _back(gradients, step)
    gradients.finish()
    again = recomputed(tape, len(run.kernels)) if checkpointing else []
    kernels = [*run.kernels, *again, *update(optimizer, sizes, run.default_width)]
    return TrainingStep(
        kernels,
        sum(gradients.saved.values()),
        checkpointed_bytes(gradients),
        sizes,
        tuple(reversed(list(gradients.saved.values())[of_loss:])),
        loss_bytes,
    )


def _begin(g: Gradients) -> float:
    """Launch the loss of the last result, and its gradient; return `TrainingStep.loss_bytes`."""
    run = g.run
    results = [p for p in g.tape.results() if g.wants(p)]
    if not results:
        return 0.0
    result = results[-1]
    g.step = next(step for step in g.tape.steps if result in step.call.outputs)
    shape, width = run.tensor(result).shape, run.state(result).width
    losses = _are_scores(g.tape, result)
    result_bytes = float(width * run.tensor(result).size)
    gradient = result
    if losses:
        if width != 4 and run.autocast:
            gradient = g.cast(gradient, 4)
        likely = g.call("softmax", (gradient,), shape)
        g.keep("likelihoods", float(run.state(likely).width * run.tensor(likely).size))
        g.keep("classes", float(INDEX_BYTES * prod(shape[:-1])))
        g.call("reduce_sum", (likely,), ())
    else:
        g.call("reduce_sum", (gradient,), ())
    run.part = "backward_input"
    start = g.fill((), 4)
    if not losses:
        made = g.viewed(start, shape, (0,) * len(shape))
        run.states[made].width = width
        g.give(result, made)
        return LOSS_COPIES * result_bytes if shape else _inner_loss_bytes(g.tape)
    with run.restored(()):
        zeros = g.fill(shape, run.state(likely).width)
        g.call("gather", (zeros, start), shape[:-1])
        made = g.call("softmax", (zeros, likely), shape)
    if run.state(made).width != width:
        made = g.cast(made, width)
    g.give(result, made)
    # Of the likelihoods and of the scores: the first is freed when the second is made.
    return result_bytes + 2.0 * run.state(likely).width * run.tensor(likely).size


def _inner_loss_bytes(tape: Tape) -> float:
    """Return `TrainingStep.loss_bytes` of a model that computes its loss itself.

    Two gradients are made of the size of the largest tensor after the last product, which the loss
    reads. What the loss saves of it is among the saved tensors.
    """
    largest = 0.0
    for step in reversed(tape.steps):
        made = [
            step.made[p].width * tape.run.tensor(p).size
            for p in step.call.outputs
            if tape.run.tensor(p).is_float
        ]
        largest = max([largest, *made])
        if step.call.op in HEADS or operator(step.call.op).kernel == "convolution":
            break
    return 2.0 * largest


def _are_scores(tape: Tape, result: int) -> bool:
    """Tell whether a result holds scores of classes on its last axis.

    A row for each sample does, and so does a product at each position of a sequence, with a bias or
    without: the head of a language model.
    """
    rank = len(tape.run.tensor(result).shape)
    made_by = {output: step.call for step in tape.steps for output in step.call.outputs}
    call = made_by[result]
    if call.op == "add":
        call = next((made_by[p] for p in call.inputs if p in made_by), call)
    return rank == 2 or (rank == 3 and call.op in HEADS)


def _back(g: Gradients, step: Step) -> None:
    """Launch what the gradients of a call's results ask for."""
    call = step.call
    gradients = [g.take(p) for p in call.outputs]
    first = next((p for p in gradients if p is not None), None)
    asked = any(map(g.wants, call.inputs)) or operator(call.op).category == "norm"
    if first is None or not asked or call.op in NOT_DIFFERENTIABLE:
        return
    if call.in_place and call.inputs[0] in g.tape.views:
        first = movement.written_over(g, step, first)
    if call.op == "split":
        movement.parted(g, step, gradients)
    else:
        _rule_of(step)(g, step, first)


def _rule_of(step: Step) -> Rule:
    call = step.call
    row = operator(call.op)
    if call.op in BY_NAME:
        return BY_NAME[call.op]
    if row.kernel in BY_KERNEL:
        return BY_KERNEL[row.kernel]
    if row.category == "view":
        return movement.reshaped
    if row.category == "copy":
        return movement.moved
    return elementwise


def _sizes(tape: Tape) -> tuple[int, ...]:
    """Return the elements of each parameter; calls do not name those of norms."""
    run = tape.run
    sizes = [run.tensor(p).size for p in tape.parameters()]
    for step in tape.steps:
        if operator(step.call.op).category == "norm":
            shape = run.tensor(step.call.inputs[0]).shape
            axes = step.call.attributes.get("axes")
            width = shape[1] if axes is None and len(shape) > 1 else shape[-1]
            sizes += [width, width]
    return tuple(sizes)
