"""`Kernel`: one launch, as numbers."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Unit = Literal["half", "tf32", "fp32", "int8"]
UNITS: tuple[Unit, ...] = get_args(Unit)
Part = Literal["forward", "backward_input", "backward_weight", "optimizer", "recompute"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Of a training step; inference is all forward. What checkpointing runs again is "recompute"."""


class Kernel(NamedTuple):
    """One launch, or several equal ones.

    Attributes:
        node: position of its operator in the graph.
        kind: one of KERNEL_CLASSES.
        unit: arithmetic that carries `flops`.
        flops: floating-point operations.
        read_bytes, write_bytes: activations.
        weight_bytes: parameters read.
        m, n, k: matrix-product view: rows, columns, reduction; for other kernels m rows of n.
        copies: independent products (groups, heads, batch of a batched product).
        window: elements of a convolution or pooling window.
        stride: of the window.
        in_bytes, out_bytes: bytes per element.
        strided: reads a permuted view.
        serial: steps that one thread does after another, beside the work above.
        launches: kernels that this record stands for.
        images_last: reads images whose channels lie next to each other.
        in_place: writes into what it reads.
        repeated: reads an operand more than once, along an axis that the operand lacks.
        run: elements in a row that it reads together, in the order in which it writes.
        sources: positions, in the list of kernels, of those that wrote what it reads; views
            between them are passed through.
        part: of a training step.
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
            elements: that are read and written.
            in_bytes: per element.
            out_bytes: per element; as `in_bytes` if it is None.
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
