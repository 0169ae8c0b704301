"""`Kernel`: one launch, as numbers."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Unit = Literal["half", "tf32", "fp32", "int8"]
UNITS: tuple[Unit, ...] = get_args(Unit)
Part = Literal["forward", "backward_input", "backward_weight", "optimizer", "recompute"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Parts of a training step; inference is all forward. Checkpointing runs "recompute"."""


class Kernel(NamedTuple):
    """One launch, or several equal ones.

    Attributes:
        node: position of its operator in the graph.
        kind: one of KERNEL_CLASSES.
        unit: arithmetic that carries `flops`.
        flops: floating-point operations.
        read_bytes, write_bytes: bytes of activations read, written.
        weight_bytes: bytes of parameters read.
        m, n, k: matrix-product view: rows, columns, reduction; for other kernels m rows of n.
        copies: number of independent products (groups, heads, batch of a batched product).
        window: elements of a convolution or pooling window.
        stride: stride of the window.
        in_bytes, out_bytes: bytes per element.
        strided: whether it reads a permuted view.
        serial: steps that one thread does one after another, besides the work above.
        launches: number of kernels that this record stands for.
        inner_launches: launches that a library makes inside the call, and no line of Python.
        images_last: whether it reads images stored channels last.
        in_place: whether it writes into its operand.
        repeated: whether it broadcasts an operand, reading it more than once.
        run: contiguous elements that it reads together, in the order in which it writes.
        sources: positions, in the list of kernels, of those whose results it reads, directly or
            through views.
        part: part of a training step.
    """

    node: int
    kind: str
    unit: Unit
    flops: float
    read_bytes: float
    write_bytes: float
    weight_bytes: float = 0.0
    m: float = 1.0
    n: float = 1.0
    k: float = 1.0
    copies: float = 1.0
    window: int = 1
    stride: int = 1
    in_bytes: int = 4
    out_bytes: int = 4
    strided: bool = False
    serial: float = 0.0
    launches: int = 1
    inner_launches: int = 0
    images_last: bool = False
    in_place: bool = False
    repeated: bool = False
    run: int = 1
    sources: tuple[int, ...] = ()
    part: Part = "forward"

    @classmethod
    def stream(
        cls, node: int, kind: str, elements: float, in_bytes: int, out_bytes: int | None = None
    ) -> Kernel:
        """Return one pass over memory: reads and writes each element once, an operation for each.

        Args:
            node: position of the operator.
            kind: kernel class.
            elements: number of elements read and written.
            in_bytes: bytes per element read.
            out_bytes: bytes per element written; None for `in_bytes`.
        """
        out_bytes = in_bytes if out_bytes is None else out_bytes
        return cls(
            node=node,
            kind=kind,
            unit="fp32",
            flops=float(elements),
            read_bytes=float(in_bytes * elements),
            write_bytes=float(out_bytes * elements),
            m=float(elements),
            in_bytes=in_bytes,
            out_bytes=out_bytes,
        )
