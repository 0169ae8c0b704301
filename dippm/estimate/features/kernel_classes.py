"""The table of kernel classes: one row per class, with all that is known of it.

To add a class: write a row at the end of `_CLASSES`, name it in the column `kernel` of an operator
(`dippm/model/graph/operators.py`) or yield it in a rule, and raise `KERNEL_FEATURE_VERSION`. The
order is that of the columns of the efficiency network, so rows are never moved: its weights depend
on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Axis = Literal["last", "channels", "reduced"]


@dataclass(frozen=True, slots=True)
class KernelClass:
    """What DIPPM knows about one class of kernels.

    Attributes:
        name: as checkpoints, features and warnings call it.
        matrix: computes in tiles of a matrix product, of m × n with a sum over k.
        tensor_cores: its products run on tensor cores where the precision allows.
        tf32_by_default: PyTorch runs its products in TF32 when nobody asks, unlike other products.
        streams: passes over memory once; a rule that folds its operator into another one leaves a
            kernel of this class in eager mode.
        fusible: a compiler joins it to kernels that follow each other.
        anchor: sees more than one element at a time: a fused kernel holds one of these at most.
        breaks_graph: a compiler leaves it to its library, as in eager mode, and compiles what runs
            before it and after it as two graphs.
        slower_compiled: measured to take longer than in eager mode where a compiler chooses the
            layout of its images; no other sum of kernels does.
        axis: over which it reduces or reads contiguously: the "last" axis, the "channels", or the
            elements that are "reduced" to one.
        parameter_row: reads one row of float32 parameters.
        reads_what_it_writes: however large its input, as lookups do.
        slots: issue slots of a multiprocessor that one multiply-add takes: 1 where operands wait
            in registers, more where a kernel fetches them and works out their addresses each time.
    """

    name: str
    matrix: bool = False
    tensor_cores: bool = False
    tf32_by_default: bool = False
    streams: bool = False
    fusible: bool = False
    anchor: bool = False
    breaks_graph: bool = False
    slower_compiled: bool = False
    axis: Axis = "last"
    parameter_row: bool = False
    reads_what_it_writes: bool = False
    slots: float = 1.0


_PRODUCT: dict[str, Any] = {"matrix": True, "tensor_cores": True}
_CONVOLUTION: dict[str, Any] = {**_PRODUCT, "tf32_by_default": True}
_FUSIBLE: dict[str, Any] = {"streams": True, "fusible": True}
_ANCHOR: dict[str, Any] = {**_FUSIBLE, "anchor": True}

_DIRECT_SLOTS = 8.0
"""PyTorch's own depthwise kernel takes 7.6 to 11.5 times as long as the multiply-adds of windows of
49 and 81, on RTX 3090, 4090 and 5090 alike, whatever their memory."""

_CLASSES = (
    KernelClass("conv_pointwise", **_CONVOLUTION),
    KernelClass("conv_spatial", **_CONVOLUTION),
    KernelClass("conv_patch", **_CONVOLUTION),
    KernelClass("conv_grouped", **_CONVOLUTION, slower_compiled=True),
    KernelClass("conv_depthwise", matrix=True, slower_compiled=True),
    KernelClass("conv_other", **_CONVOLUTION),
    KernelClass("gemm", **_PRODUCT),
    KernelClass("batched_gemm", **_PRODUCT),
    KernelClass("attention", **_PRODUCT),
    KernelClass("recurrent", **_PRODUCT, breaks_graph=True),
    KernelClass("batch_norm", **_FUSIBLE, axis="channels", parameter_row=True),
    KernelClass("layer_norm", **_ANCHOR, parameter_row=True),
    KernelClass("group_norm", **_ANCHOR),
    KernelClass("softmax", **_ANCHOR),
    KernelClass("reduction", **_ANCHOR, axis="reduced"),
    KernelClass("pool", streams=True),
    KernelClass("activation", **_FUSIBLE),
    KernelClass("costly_activation", **_FUSIBLE),
    KernelClass("elementwise", **_FUSIBLE),
    KernelClass("broadcast", **_FUSIBLE),
    KernelClass("copy", **_FUSIBLE),
    KernelClass("concat", **_ANCHOR),
    KernelClass("cast", **_FUSIBLE),
    KernelClass("gather", **_ANCHOR, reads_what_it_writes=True),
    KernelClass("resize", streams=True),
    KernelClass("other"),
    KernelClass("conv_depthwise_direct", matrix=True, slots=_DIRECT_SLOTS, slower_compiled=True),
)
KERNEL_CLASSES: Mapping[str, KernelClass] = {row.name: row for row in _CLASSES}
"""Classes by name, in the order of the table."""
