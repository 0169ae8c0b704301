"""Calls that pass over memory once."""

from __future__ import annotations

from math import prod

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES, KernelClass
from dippm.estimate.features.kernels.casts import TYPED_RESULT, lower, widen
from dippm.estimate.features.kernels.products import copied, dense_image, macs
from dippm.estimate.features.kernels.run import (
    Run,
    Strides,
    elementwise_strides,
    image_strides,
    images_last,
)
from dippm.model.graph.calls import OperatorCall
from dippm.model.graph.draft import Shape
from dippm.model.graph.macs import real_flops
from dippm.model.graph.operators import is_elementwise, operator
from dippm.model.graph.strides import dense_strides

WANTS_DENSE = ("layer_norm", "rms_norm", "softmax", "log_softmax", "roll", "cumsum", "l2_normalize")
KEEPS_IMAGES = ("batch_norm", "max_pool", "avg_pool", "resize", "global_avg_pool", "group_norm")
IMAGE_NORMS = ("group_norm", "instance_norm")
"""Kernels of eager PyTorch take these images channels first alone."""
WANTS_NO_GAPS = ("max_pool", "avg_pool", "resize")
PROMOTED = ("concat", "multiply_add")
"""What autocast gives arguments of one width."""
MASKS = ("where", "equal", "greater", "less", "logical_not")
INDEX_WIDTH = 8


def pass_over_memory(run: Run, call: OperatorCall) -> None:
    """Launch the kernel of a call that is no matrix product, and the casts that it needs."""
    operands = run.operands(call) or list(call.inputs[:1])
    source = operands[0] if operands else None
    out = run.tensor(call.outputs[0])
    in_place = call.in_place and is_elementwise(call.op)
    width = made_ready(run, call, operands)
    if in_place and source is not None and run.tensor(source).shape == out.shape:
        width = run.state(source).width
    floats = [p for p in operands if run.tensor(p).is_float] or operands
    kind = class_of(run, call, operands)
    row = KERNEL_CLASSES[kind]
    read, written = _elements(run, call, operands, row)
    strides = _result_strides(run, call, operands)
    length = row_length(run, kind, source, out.shape)
    indices = INDEX_WIDTH * written if _writes_unread_indices(run, call) else 0.0
    elements = read if row.axis == "reduced" else written
    each = operator(call.op).flops_per_output
    if operator(call.op).category == "elementwise":
        each *= real_flops(call.op, out.dtype)
    flops = each * elements + 2.0 * macs(run, call)
    kernel = Kernel(
        node=call.node,
        kind=kind,
        unit="fp32",
        flops=float(max(flops, written)),
        read_bytes=_bytes_read(run, operands, row, read),
        write_bytes=float(width * written) + indices,
        weight_bytes=float(run.default_width * length if row.parameter_row else 0),
        m=max(read, written) / max(length, 1.0),
        n=length,
        window=prod(_sizes(call, "kernel")),
        stride=max(_sizes(call, "strides")),
        in_bytes=max((run.state(p).width for p in floats), default=width),
        out_bytes=width,
        strided=_is_strided(run, operands, strides),
        serial=float(_serial_steps(run, call, source)),
        images_last=source is not None and images_last(run, source),
        in_place=in_place,
        repeated=any(run.tensor(p).size < out.size for p in operands) and row.streams,
        run=_shortest_run(run, operands, strides),
    )
    run.emit(kernel, operands)
    widened = width == 4 and any(run.state(p).widened for p in operands if run.tensor(p).is_float)
    for p in call.outputs:
        same = run.tensor(p).shape == out.shape
        run.make(p, _width_of(run, call, p, width), strides if same else None, widened=widened)


def _writes_unread_indices(run: Run, call: OperatorCall) -> bool:
    """Tell whether a call writes positions that nobody reads: a compiler leaves them out."""
    return call.op == "max_pool" and len(call.outputs) == 1 and not run.compiled


def made_ready(run: Run, call: OperatorCall, operands: list[int]) -> int:
    """Cast and copy operands as the call wants them; return the width of its result."""
    if run.narrows(call):
        for position in operands:
            lower(run, call, position)
    width, is_float = run.promoted(call), run.tensor(call.outputs[0]).is_float
    widens = run.widens(call) and is_float
    width = 4 if widens else width
    promotes = run.autocast and call.op in PROMOTED and width == 4
    if (widens and call.op not in TYPED_RESULT) or promotes:
        for position in operands:
            widen(run, call, position)
    if operands and call.op in WANTS_NO_GAPS:
        dense_image(run, call, operands[0])
    if operands and _wants_dense(run, call, operands[0]):
        copied(run, call, operands[0], run.tensor(operands[0]).size)
    return width


def _width_of(run: Run, call: OperatorCall, position: int, width: int) -> int:
    tensor = run.tensor(position)
    if tensor.is_float:
        return width
    return run.natural_width(tensor) if call.op in MASKS else INDEX_WIDTH


def _elements(
    run: Run, call: OperatorCall, operands: list[int], row: KernelClass
) -> tuple[float, float]:
    """Return how many elements a call reads and writes; lookups read what they find."""
    written = float(sum(run.tensor(p).size for p in call.outputs))
    if row.reads_what_it_writes and operands:
        return min(written, float(run.stored(operands[0]))), written
    if call.op == "dynamic_slice":
        return written, written
    return float(sum(map(run.stored, operands))), written


def _bytes_read(run: Run, operands: list[int], row: KernelClass, looked_up: float) -> float:
    """Return the bytes read: of a lookup the rows that it finds, and its indices."""
    if row.reads_what_it_writes and operands:
        indices = sum(run.stored(p) * run.state(p).width for p in operands[1:])
        return float(looked_up * run.state(operands[0]).width + indices)
    return float(sum(run.stored(p) * run.state(p).width for p in operands))


def class_of(run: Run, call: OperatorCall, operands: list[int]) -> str:
    """Return the kernel class of a call that is no matrix product."""
    row = operator(call.op)
    sizes = {run.tensor(p).shape for p in operands}
    if row.kernel == "elementwise" and len(sizes) > 1:
        return "broadcast"
    return row.kernel if row.kernel in KERNEL_CLASSES else "other"


def _wants_dense(run: Run, call: OperatorCall, source: int) -> bool:
    if call.op in IMAGE_NORMS and run.compiled and images_last(run, source):
        return False
    return call.op in (*WANTS_DENSE, *IMAGE_NORMS) and not run.is_dense(source)


def _result_strides(run: Run, call: OperatorCall, operands: list[int]) -> Strides:
    shape = run.tensor(call.outputs[0]).shape
    if not operands:
        return dense_strides(shape)
    if call.op in KEEPS_IMAGES and len(shape) == len(run.tensor(operands[0]).shape) == 4:
        return image_strides(run, operands[0], shape)
    if call.op == "concat" and all(images_last(run, p) for p in operands):
        return image_strides(run, operands[0], shape)
    if is_elementwise(call.op):
        return elementwise_strides(run, operands, shape)
    return dense_strides(shape)


def _is_strided(run: Run, operands: list[int], strides: Strides) -> bool:
    """Tell whether an operand lies in another order than the result."""
    for p in operands:
        held = run.state(p).strides
        if len(held) != len(strides):
            if not run.is_dense(p):
                return True
            continue
        shape = run.tensor(p).shape
        ours = [axis for axis in range(len(shape)) if shape[axis] > 1 and held[axis]]
        if sorted(ours, key=lambda a: (-held[a], a)) != sorted(
            ours, key=lambda a: (-strides[a], a)
        ):
            return True
    return False


def _shortest_run(run: Run, operands: list[int], strides: Strides) -> int:
    lengths = [
        run.run_length(p, strides)
        for p in operands
        if len(run.state(p).strides) == len(strides) and run.tensor(p).size > 1
    ]
    return min(lengths, default=1)


def row_length(run: Run, kind: str, source: int | None, out: Shape) -> float:
    """Return the length over which a kernel reduces or streams contiguously."""
    shape = run.tensor(source).shape if source is not None else out
    axis = KERNEL_CLASSES[kind].axis
    if axis == "reduced":
        return prod(shape) / max(1, prod(out))
    if axis == "channels":
        return float(shape[1]) if len(shape) > 1 else 1.0
    return float(shape[-1]) if shape else 1.0


def _serial_steps(run: Run, call: OperatorCall, source: int | None) -> int:
    """Return images × channels for bilinear upsampling of contiguous images, else 0.

    A thread of its kernel walks all images and channels; generated code does not.
    """
    if (
        run.compiled
        or call.op != "resize"
        or call.attributes.get("mode") != "linear"
        or source is None
    ):
        return 0
    out = run.tensor(call.outputs[0]).shape
    return prod(out[:2]) if len(out) == 4 and not images_last(run, source) else 0


def _sizes(call: OperatorCall, name: str) -> tuple[int, ...]:
    value = call.attributes.get(name, (1,))
    if isinstance(value, tuple | list):
        return tuple(int(v) for v in value) or (1,)
    return (int(value),) if isinstance(value, int | float) else (1,)
