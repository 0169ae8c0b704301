"""Backward kernels of matrix products, normalisations, softmax and element-wise operators.

Each public function is a rule for one kind of call: given the gradient of its result, it launches
the kernels that compute the gradients of its arguments, and registers what autograd keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.backward.gradients import Gradients, Step
from dippm.estimate.features.kernels.norms import serial_loads
from dippm.estimate.features.kernels.streaming import row_length
from dippm.model.graph.operators import operator
from dippm.model.graph.strides import dense_strides, view_strides

# Matrix products: the gradient of each operand is another product.

MATRIX = 2
"""Number of axes of a matrix."""


def matmul(g: Gradients, step: Step, gradient: int) -> None:
    """Launch dA = dY Bᵀ and dB = Aᵀ dY for Y = A B.

    If B is a matrix, the leading axes of A and dY are merged into the rows of one matrix, so that
    the product for dB also sums over them. If B holds a matrix for each group of rows of A
    (experts), dB sums over the rows of each group, taken to be equally many. Autograd keeps both
    operands as the product read them.
    """
    left, right = step.call.inputs[:2]
    run = g.run
    wants_left, wants_right = g.wants(left), g.wants(right)
    if len(run.tensor(right).shape) == 1 or len(run.tensor(left).shape) == 1:
        _vector_product(g, step, gradient)
        return
    is_matrix = len(run.tensor(right).shape) == MATRIX
    depth = run.kernels[step.kernel].k
    with g.towards(left):
        gradient = _as_matrix(g, gradient) if is_matrix else _as_batched_matrices(g, gradient)
    if wants_left:
        weight = g.kept(right)
        weight = _transposed(g, _weight_matrix(g, weight, int(depth)) if is_matrix else weight)
        shape = (*run.tensor(gradient).shape[:-1], run.tensor(weight).shape[-1])
        with g.towards(left):
            made = g.multiply(gradient, weight, shape, k=float(run.tensor(gradient).shape[-1]))
            if is_matrix:
                made = g.reshaped(made, run.tensor(left).shape)
        g.give(left, made)
    if wants_right:
        with g.towards(right):
            held = g.kept(left)
            held = _transposed(g, _as_matrix(g, held) if is_matrix else held)
            rows, width = run.tensor(gradient).shape[-2:]
            shape = (*_broadcast_batch(g, held, gradient), run.tensor(held).shape[-2], width)
            terms = float(rows)
            if not is_matrix and len(run.tensor(gradient).shape) == MATRIX:
                shape = run.tensor(right).shape
                terms = rows / prod(shape[:-2])
            made = g.multiply(held, gradient, shape, k=terms)
        g.give(right, made)


def _vector_product(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the gradients of a product with a vector: one element-wise pass per operand."""
    left, right = step.call.inputs[:2]
    for position, other in ((left, right), (right, left)):
        if g.wants(position):
            shape = g.run.tensor(left if g.run.tensor(left).size > 1 else right).shape
            with g.towards(position):
                made = g.call("multiply", (gradient, g.kept(other)), shape)
            g.give(position, made)


def _weight_matrix(g: Gradients, position: int, depth: int) -> int:
    """Return a weight as a k × n matrix, k being `depth`.

    A graph that was not read from a file only states the number of elements of a weight.
    """
    shape = g.run.tensor(position).shape
    if shape[0] == depth:
        return position
    size = g.run.tensor(position).size // depth
    return g.viewed(position, (depth, size), dense_strides((depth, size)))


def _transposed(g: Gradients, position: int) -> int:
    """Return a view with the last two axes exchanged."""
    axes = list(range(len(g.run.tensor(position).shape)))
    return g.permuted(position, (*axes[:-2], axes[-1], axes[-2]))


def _as_matrix(g: Gradients, position: int) -> int:
    """Return a tensor as a matrix whose rows are all of its leading axes."""
    shape = g.run.tensor(position).shape
    return g.reshaped(position, (prod(shape[:-1]), shape[-1]))


def _as_batched_matrices(g: Gradients, position: int) -> int:
    """Return a gradient whose leading axes form one batch axis, copied once for both products."""
    shape, strides = g.run.tensor(position).shape, g.run.state(position).strides
    batch = shape[:-2]
    if len(batch) > 1 and view_strides(batch, strides[:-2], (prod(batch),)) is None:
        return g.dense(position, dense_strides(shape))
    return position


def _broadcast_batch(g: Gradients, left: int, right: int) -> tuple[int, ...]:
    """Return the broadcast leading axes of two batches of matrices."""
    a, b = (g.run.tensor(position).shape[:-2] for position in (left, right))
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    shorter = (1,) * (len(longer) - len(shorter)) + shorter
    return tuple(map(max, longer, shorter))


# Normalisations: sums over the normalised axes, then the gradient of each element.

STATISTIC = 4
"""Bytes of a mean or a standard deviation, which are float32 in every precision."""
FLOPS = 8
"""Arithmetic operations per element of a gradient through a normalisation."""
SERIAL_PER_LOAD = 2.9
"""Memory latencies per pair of loads of a thread of PyTorch's own batch norm, which reads
gradient and image twice: 0.65 to 0.92 µs together on H100 and H200."""


def batch_norm(g: Gradients, step: Step, gradient: int) -> None:
    """Launch one kernel, which reads gradient and input twice: for sums, then elements."""
    source = step.call.inputs[0]
    image = g.kept(source)
    channels = g.run.tensor(source).shape[1]
    g.keep("statistics", 2.0 * STATISTIC * channels)
    kernel = _norm_kernel(g, step, "batch_norm", (gradient, image), float(channels))
    # Per channel: weight, mean and inverse deviation are read, two parameter gradients written.
    kernel = kernel._replace(
        read_bytes=2.0 * kernel.read_bytes,
        weight_bytes=5.0 * STATISTIC * channels,
        serial=SERIAL_PER_LOAD * serial_loads(g.run, image),
    )
    width, strides = g.run.state(image).width, g.run.state(image).strides
    with g.towards(source):
        made = g.launch(kernel, (gradient, image), g.run.tensor(source).shape, width, strides)
    g.give(source, made)


def layer_norm(g: Gradients, step: Step, gradient: int) -> None:
    """Launch a kernel for the input's gradient, another for the weights' sums over all rows."""
    source, run = step.call.inputs[0], g.run
    shape = run.tensor(source).shape
    gradient = g.dense(gradient, dense_strides(shape))
    image = g.dense(g.original(source), dense_strides(shape))
    length = row_length(run, "layer_norm", source, shape)
    rows = prod(shape) / max(length, 1.0)
    g.keep("statistics", 2.0 * STATISTIC * rows)
    kernel = _norm_kernel(g, step, "layer_norm", (gradient, image), length)
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
    """Launch the gradients of a group normalisation.

    Kernels in order: sums per sample and channel, two that combine them per group, the elements,
    and sums over the batch for the weights.
    """
    source, run = step.call.inputs[0], g.run
    image = g.kept(source)
    shape = run.tensor(source).shape
    strides = run.state(image).strides
    gradient = g.dense(gradient, strides)
    channels = float(prod(shape[:2]))
    g.keep("statistics", 2.0 * STATISTIC * shape[0])
    kernel = _norm_kernel(g, step, "group_norm", (gradient, image), float(shape[-1]))
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
    """Launch one kernel that reads gradient and result and writes in the argument's precision.

    Autograd keeps the result.
    """
    run, source = g.run, step.call.inputs[0]
    result = g.result(step.call.outputs[0])
    shape = run.tensor(result).shape
    gradient = g.dense(gradient, dense_strides(shape))
    length = row_length(run, "softmax", source, shape)
    width = step.given[source].width
    kernel = _norm_kernel(g, step, "softmax", (gradient, result), length)
    kernel = kernel._replace(write_bytes=float(width * run.tensor(result).size), out_bytes=width)
    with g.towards(source):
        made = g.launch(kernel, (gradient, result), shape, width)
    g.give(source, made)


def _norm_kernel(
    g: Gradients, step: Step, kind: str, operands: tuple[int, int], length: float
) -> Kernel:
    """Return a kernel that reads gradient and another tensor of one shape and writes a third.

    Args:
        g: backward pass.
        step: call whose gradient is computed.
        kind: kind of kernel.
        operands: the gradient, and the input or result of the call.
        length: number of elements per normalised row.
    """
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


# Element-wise operators: passes over gradient, arguments and results.

Passes = tuple[str, ...]
"""Operands of successive passes, one letter each, see `PASSES`."""
_NAMES = {"a": 0, "b": 1, "c": 2}
_SLOPE_OF_RESULT: tuple[Passes, ...] = (("gr",),)

PASSES: Mapping[str, tuple[Passes, ...]] = {
    "add": ((), ()),
    "subtract": ((), ("g",)),
    "multiply": (("gb",), ("ga",)),
    "divide": (("gb",), ("g", "ab", "tb", "st")),
    "relu": _SLOPE_OF_RESULT,
    "sigmoid": _SLOPE_OF_RESULT,
    "tanh": _SLOPE_OF_RESULT,
    "exp": _SLOPE_OF_RESULT,
    "neg": (("g",),),
    "abs": (("a", "gt"),),
    "square": (("a", "t", "gt"),),
    "power": (("a", "t", "gt"),),
    "sqrt": (("r", "gt"),),
    "rsqrt": (("g", "r", "st"),),
    "reciprocal": (("g", "r", "st"),),
    "sin": (("a", "gt"),),
    "cos": (("a", "t", "gt"),),
    "erf": (("a", "t", "t", "t", "gt"),),
    "where": ((), ("gc",), ("gc",)),
    "masked_fill": (("g", "t"),),
    "maximum": (("ab", "gt"), ("ab", "gt")),
    "minimum": (("ab", "gt"), ("ab", "gt")),
    "multiply_add": ((), ("c", "gt"), ("b", "gt")),
    "cast": ((),),
    "identity": ((),),
}
"""Operands of each pass, by canonical operator name and argument.

The letters stand for tensors: g for the gradient, a, b and c for the arguments, r for the result, t
for the output of the previous pass and s for that of the pass before it. An argument without passes
receives the gradient unchanged.
"""
OF_RESULT_IN_PLACE = frozenset("relu leaky_relu elu selu celu sigmoid tanh exp".split())
"""Operators that compute their derivative from the result if they overwrote the argument."""
PLAIN = frozenset(PASSES) - frozenset("relu sigmoid tanh".split())
"""Calls whose gradient consists of products and quotients instead of an operator of its own."""


def elementwise(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the passes for each argument.

    An operator that `PASSES` lacks takes one pass over gradient and argument; one with products
    repeats those of the forward pass for each argument.
    """
    call, run = step.call, g.run
    rows = PASSES.get(call.op, (("ga",), ("gb",), ("gc",)))
    result = run.tensor(call.outputs[0]).shape
    for index, position in enumerate(call.inputs[: len(rows)]):
        if not g.wants(position):
            continue
        passes, shape = rows[index], result
        if call.op not in PASSES:  # where it reduces, each element of the argument has a gradient
            shape = max(result, run.tensor(position).shape, key=prod)
        if call.in_place and call.op in OF_RESULT_IN_PLACE and rows is not _SLOPE_OF_RESULT:
            passes = ("gr",)
        with g.towards(position):
            made = _launch_passes(g, step, passes, gradient, shape)
        g.give(position, made)


def _launch_passes(
    g: Gradients, step: Step, passes: Passes, gradient: int, shape: tuple[int, ...]
) -> int:
    """Launch the passes for one argument; return its gradient."""
    call = step.call
    made = [gradient]
    for at, letters in enumerate(passes):
        reads = []
        for letter in letters:
            if letter in _NAMES:
                position = call.inputs[_NAMES[letter]] if _NAMES[letter] < len(call.inputs) else -1
                if position >= 0 and not g.run.tensor(position).is_number:
                    reads.append(g.kept(position))
            elif letter == "r":
                reads.append(g.result(call.outputs[0]))
            else:
                reads.append({"g": gradient, "t": made[-1], "s": made[max(-2, -len(made))]}[letter])
        op = call.op if at == len(passes) - 1 and call.op not in PLAIN else "multiply"
        size = g.run.tensor(reads[0]).shape if len(reads) == 1 else shape
        attributes = call.attributes if op == call.op and operator(op).macs else {}
        made.append(g.call(op, reads, size, **attributes))
    return made[-1]
