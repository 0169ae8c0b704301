"""Matrix products: dense layers, batched products, and the kernel that all products are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.casts import lower
from dippm.estimate.features.kernels.run import Run, Strides
from dippm.model.graph.calls import OperatorCall
from dippm.model.graph.macs import is_complex, real_macs
from dippm.model.graph.operators import operator
from dippm.model.graph.rules.products import BYTES
from dippm.model.graph.strides import (
    broadcast_strides,
    dense_strides,
    dense_strides_like,
    is_channels_last,
    view_strides,
)

BATCHED_RANK = 3


def product(
    run: Run,
    call: OperatorCall,
    kind: str,
    shape: tuple[float, float, float],
    *,
    copies: float = 1.0,
    flops: float,
    operands: Iterable[int],
    strides: Strides | None = None,
) -> None:
    """Launch a matrix product that reads operands and makes the first result.

    Args:
        run: the run.
        call: the call.
        kind: kernel class.
        shape: m, n, k.
        copies: independent products of this shape.
        flops: floating-point operations of all copies.
        operands: tensors that it reads; autocast casts them.
        strides: strides of the result.
    """
    m, n, k = shape
    width, out = run.product_width, call.outputs[0]
    reads = list(operands)
    for position in reads:
        lower(run, call, position)
    data = [p for p in reads if not run.tensor(p).roots]
    weights = [p for p in reads if run.tensor(p).roots]
    kernel = Kernel(
        node=call.node,
        kind=kind,
        unit=run.unit(kind),
        flops=flops,
        read_bytes=float(width * sum(map(run.stored, data))),
        write_bytes=float(width * sum(run.tensor(p).size for p in call.outputs[:1])),
        weight_bytes=float(width * sum(run.tensor(p).size for p in weights)),
        m=m,
        n=n,
        k=k,
        copies=copies,
        in_bytes=width,
        out_bytes=width,
        strided=any(not run.is_dense(p) for p in data),
    )
    if _is_integer(run, data or reads):
        kernel = _in_integers(run, call, kernel)
    elif is_complex(run.tensor(out).dtype):
        kernel = _in_complex(run, call, kernel, data, weights)
    run.emit(kernel, reads)
    parts = 2 if is_complex(run.tensor(out).dtype) else 1
    run.make(out, parts * kernel.out_bytes, strides)


def _is_integer(run: Run, operands: list[int]) -> bool:
    return bool(operands) and all(run.tensor(p).dtype in BYTES for p in operands)


def _in_integers(run: Run, call: OperatorCall, kernel: Kernel) -> Kernel:
    """Return a product as one of 8-bit integers, whatever the precision of the rest."""
    width, out = run.product_width, run.promoted(call)
    return kernel._replace(
        unit="int8",
        read_bytes=kernel.read_bytes / width,
        write_bytes=kernel.write_bytes / width * out,
        weight_bytes=kernel.weight_bytes / width,
        in_bytes=1,
        out_bytes=out,
    )


def _in_complex(
    run: Run, call: OperatorCall, kernel: Kernel, data: list[int], weights: list[int]
) -> Kernel:
    """Return a product of complex numbers as the real one that it is: (m, 2k) × (2k, 2n).

    No precision of a run makes complex numbers narrower.
    """
    out = run.tensor(call.outputs[0])
    width = run.natural_width(out)
    return kernel._replace(
        unit="fp32" if kernel.unit == "half" else kernel.unit,
        flops=kernel.flops * real_macs(out.dtype),
        read_bytes=float(sum(run.state(p).width * run.stored(p) for p in data)),
        write_bytes=float(width * out.size),
        weight_bytes=float(sum(run.state(p).width * run.tensor(p).size for p in weights)),
        n=2 * kernel.n,
        k=2 * kernel.k,
        in_bytes=width // 2,
        out_bytes=width // 2,
    )


def matmul(run: Run, call: OperatorCall) -> None:
    """Launch a product of two tensors: one matrix, or a batch of them."""
    left, right = call.inputs[:2]
    for position in (left, right):
        lower(run, call, position)
    out = run.tensor(call.outputs[0])
    a, b = run.tensor(left).shape, run.tensor(right).shape
    k = float(call.attributes.get("k") or call.attributes.get("in_features") or (a or (1,))[-1])
    flops = 2.0 * out.size * k
    if len(b) <= 2 or len(a) == 1:
        n = float(out.shape[-1]) if out.shape and len(b) > 1 else 1.0
        _rows(run, call, left)
        product(
            run, call, "gemm", (out.size / max(n, 1.0), n, k), flops=flops, operands=[left, right]
        )
        return
    m, n = (float(out.shape[-2]), float(out.shape[-1])) if len(out.shape) > 1 else (1.0, 1.0)
    copies = out.size / max(m * n, 1.0)
    batch = out.shape[:-2]
    for position in (left, right):
        _gathered(run, call, position, batch)
    turned = run.state(right).strides[-2:] != dense_strides(b)[-2:]
    product(
        run, call, "batched_gemm", (m, n, k), copies=copies, flops=flops, operands=[left, right]
    )
    run.kernels[-1] = run.kernels[-1]._replace(strided=turned)


def _rows(run: Run, call: OperatorCall, position: int) -> None:
    """Copy an operand that is no matrix of rows as it lies in memory."""
    tensor, held = run.tensor(position), run.state(position)
    if tensor.is_parameter or len(tensor.shape) < BATCHED_RANK:
        return
    rows = (prod(tensor.shape[:-1]), tensor.shape[-1])
    if view_strides(tensor.shape, held.strides, rows) is None:
        copied(run, call, position, tensor.size)


def _gathered(run: Run, call: OperatorCall, position: int, batch: tuple[int, ...]) -> None:
    """Copy an operand of a batched product whose matrices are not one run of memory."""
    tensor, held = run.tensor(position), run.state(position)
    full = (*batch, *tensor.shape[-2:])
    if len(full) <= BATCHED_RANK or len(tensor.shape) < 2:
        return
    strides = broadcast_strides(tensor.shape, held.strides, full)
    if view_strides(batch, strides[:-2], (prod(batch),)) is None:
        copied(run, call, position, prod(full))


def copied(
    run: Run, call: OperatorCall, position: int, elements: float, strides: Strides | None = None
) -> None:
    """Launch the copy that gives a tensor other strides for a call, dense ones if it is None."""
    held = run.state(position)
    width, after = held.width, held.makers
    wanted = strides or dense_strides(run.tensor(position).shape)
    length = run.run_length(position, wanted)
    row = run.tensor(position).shape[-1] if run.tensor(position).shape else 1
    kernel = Kernel.stream(call.node, "copy", elements, width)
    kernel = kernel._replace(
        read_bytes=float(width * run.stored(position)),
        strided=True,
        run=length,
        m=elements / max(row, 1),
        n=float(row),
    )
    at = run.emit(kernel, after=after)
    run.states[position] = replace(held, width=width, strides=wanted, makers=(at,))


def dense_image(run: Run, call: OperatorCall, position: int) -> None:
    """Copy images that have gaps in memory, such as a part of the channels, for a call.

    The copy holds its channels next to each other if the images do.
    """
    tensor, held = run.tensor(position), run.state(position)
    if tensor.is_parameter or run.is_dense(position) or len(tensor.shape) < BATCHED_RANK:
        return
    kept = dense_strides_like(tensor.shape, held.strides)
    if kept != held.strides:
        last = is_channels_last(tensor.shape, held.strides)
        copied(run, call, position, tensor.size, kept if last else None)


def macs(run: Run, call: OperatorCall) -> int:
    """Return the multiply-accumulates of a call, by the formula of its operator; 0 without one."""
    formula = operator(call.op).macs
    if formula is None:
        return 0
    given = tuple(run.tensor(p).shape for p in call.inputs)
    return formula(call.attributes, given, tuple(run.tensor(p).shape for p in call.outputs))
