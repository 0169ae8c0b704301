"""Norms over the pixels of images, of which eager PyTorch makes more than one kernel."""

from __future__ import annotations

from math import prod

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.run import HALF_WIDTH, Run, images_last
from dippm.estimate.features.kernels.streaming import made_ready, pass_over_memory
from dippm.model.graph.calls import OperatorCall

STATISTIC = 4
"""Bytes of a mean or of a deviation; they are float32 whatever the images are."""
SUM_FLOPS, SCALE_FLOPS = 4, 2
"""Operations for each element of its share in mean and deviation, and of what they do to it."""
BLOCK = 512
"""Threads of a block of PyTorch's own batch norm, which has one block for each channel
(aten/src/ATen/native/cuda/Normalization.cuh)."""


def serial_loads(run: Run, position: int) -> float:
    """Return how many loads a thread of a training batch norm waits for, one after another.

    0 for cuDNN's kernel, which takes float16 or float32 images with float32 weights, and for
    images held channels last. In other types PyTorch's own kernel has one block for each channel.
    """
    narrow = run.state(position).width == HALF_WIDTH
    if not narrow or run.precision == "amp" or images_last(run, position):
        return 0.0
    samples, _, *image = run.tensor(position).shape
    pixels = prod(image)
    row = next((n for n in (32, 64, 128, 256) if n >= pixels), BLOCK)
    return samples * row / BLOCK * -(-pixels // row)


def group_norm(run: Run, call: OperatorCall) -> None:
    """Launch the sums of each group, factors of each channel, and the pass that applies them.

    Generated code is one kernel, see `fuse`. The factors are those of a norm with weight and bias,
    which exporters may leave out.
    """
    if run.compiled:
        pass_over_memory(run, call)
        return
    source = run.operands(call)[0]
    width = made_ready(run, call, [source])
    shape = run.tensor(source).shape
    sums = _sums(run, call, source, shape[0] * int(call.attributes.get("groups") or 1))
    factors = Kernel.stream(call.node, "broadcast", prod(shape[:2]), width)._replace(repeated=True)
    _apply(run, call, source, width, run.emit(factors, after=[sums]))


def instance_norm(run: Run, call: OperatorCall) -> None:
    """Launch the batch norm of each channel of each image.

    cuDNN has one kernel for it; half precision with weights as narrow is PyTorch's own, in two.
    """
    source = run.operands(call)[0]
    if run.compiled or run.autocast or run.state(source).width != HALF_WIDTH:
        pass_over_memory(run, call)
        return
    width = made_ready(run, call, [source])
    channels = prod(run.tensor(source).shape[:2])
    _apply(run, call, source, width, _sums(run, call, source, channels))


def _sums(run: Run, call: OperatorCall, source: int, rows: int) -> int:
    """Launch the sums of rows; return their position."""
    size, width = run.tensor(source).size, run.state(source).width
    kernel = Kernel.stream(call.node, "group_norm", size, width)
    kernel = kernel._replace(
        flops=float(SUM_FLOPS * size),
        write_bytes=2.0 * STATISTIC * rows,
        m=float(rows),
        n=size / rows,
        out_bytes=STATISTIC,
    )
    return run.emit(kernel, [source])


def _apply(run: Run, call: OperatorCall, source: int, width: int, after: int) -> None:
    """Launch the pass that scales and shifts each element."""
    shape, held = run.tensor(source).shape, run.state(source)
    size, row = run.tensor(source).size, shape[-1]
    kernel = Kernel.stream(call.node, "broadcast", size, held.width, width)
    kernel = kernel._replace(
        flops=float(SCALE_FLOPS * size), m=size / max(row, 1), n=float(row), repeated=True
    )
    run.emit(kernel, [source], after=[after])
    for position in call.outputs:
        out_width = width if run.tensor(position).shape == shape else STATISTIC
        run.make(position, out_width, widened=width == 4 and held.widened)
