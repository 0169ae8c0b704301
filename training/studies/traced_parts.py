"""`TracedKernel`: one launch of eager PyTorch; and the launches of calls with several kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_BIASED = 3
"""Number of operands of a convolution with bias."""


@dataclass(frozen=True, slots=True)
class TracedKernel:
    """An aten call that launches something, or a part of one.

    Attributes:
        op: aten name, "attention" for a fused one, "host_to_device" for a transfer.
        kind: one of KERNEL_CLASSES.
        read_bytes: bytes of operands, weights included; repeated elements of an expanded view count
            once.
        weight_bytes: part of `read_bytes` that is parameters and buffers, or computed from them
            alone.
        write_bytes: bytes of results.
        elements: number of elements of the largest result.
        shape: shape of the first result.
        path: path of the calling module.
        launches: number of kernels of this call, where it is known not to be one.
        operands: dtype and shape of each operand, with its strides if it is not dense.
        result: dtype of the first result, and its strides if it is not dense.
        part: part of a training step.
    """

    op: str
    kind: str
    read_bytes: float
    weight_bytes: float
    write_bytes: float
    elements: int
    shape: tuple[int, ...]
    path: str = ""
    launches: int = 1
    operands: tuple[str, ...] = ()
    result: str = ""
    part: str = "forward"


def parts_of(kernel: TracedKernel) -> Sequence[TracedKernel]:
    """Return the kernels of a call: convolution and bias of cuDNN, fill and copy of a padding.

    ATen's own kernels of depthwise convolutions add their bias themselves.
    """
    if kernel.op == "convolution" and len(kernel.operands) == _BIASED:
        return _biased(kernel)
    if kernel.op == "constant_pad_nd" and kernel.launches > 1:
        fill = replace(
            kernel, kind="elementwise", read_bytes=0.0, weight_bytes=0.0, launches=1, operands=()
        )
        return fill, replace(kernel, write_bytes=kernel.read_bytes, launches=1)
    return (kernel,)


def _biased(kernel: TracedKernel) -> Sequence[TracedKernel]:
    if kernel.kind == "conv_depthwise_direct":
        return (kernel,)
    bias = kernel.shape[1] * kernel.write_bytes / kernel.elements
    alone = replace(
        kernel,
        read_bytes=kernel.read_bytes - bias,
        weight_bytes=kernel.weight_bytes - bias,
        operands=kernel.operands[:-1],
    )
    addition = replace(
        kernel,
        op="add_",
        kind="broadcast",
        read_bytes=kernel.write_bytes + bias,
        weight_bytes=bias,
        operands=(kernel.result, kernel.operands[-1]),
    )
    return alone, addition
