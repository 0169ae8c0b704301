"""The kernels of a language model one by one, as `Kernel`s of the shipped law, with their counts.

Sizes are those of one GPU. Half precision unless a format says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dippm.decide.language.formats import WeightFormat
from dippm.estimate.features.kernel import Kernel

HALF, FULL = 2, 4
"""Bytes per element."""
INDEX = 8
LONGEST_RUN = 4096
"""Elements in a row that features tell apart, as in `dippm.estimate.features.kernels`."""


class Pass(NamedTuple):
    """One pass through a decoder.

    Attributes:
        batch: sequences.
        queries: new tokens of each.
        context: tokens of each at the end of the pass, the new ones included.
        scored: tokens of each that the head scores.
    """

    batch: int
    queries: int
    context: int
    scored: int = 1

    @property
    def tokens(self) -> int:
        """Return the new tokens of all sequences."""
        return self.batch * self.queries

    @property
    def is_decode(self) -> bool:
        """Tell whether each sequence gets one token more."""
        return self.queries == 1

    @classmethod
    def prefill(cls, batch: int, prompt: int) -> Pass:
        """Return the pass that reads prompts."""
        return cls(batch, prompt, prompt)

    @classmethod
    def decode(cls, batch: int, context: int) -> Pass:
        """Return the pass that adds one token, the last of `context`."""
        return cls(batch, 1, context)


@dataclass(slots=True)
class KernelList:
    """Kernels with what they do and how often they run, in the order of their first run.

    Attributes:
        counts: runs of each kernel, by (name, kernel).
        reduced_bytes: what each GPU adds up with the others, one entry for each time.
    """

    counts: dict[tuple[str, Kernel], int] = field(default_factory=dict)
    reduced_bytes: list[float] = field(default_factory=list)

    def add(self, name: str, kernel: Kernel, times: int = 1) -> None:
        """Launch a kernel, `times` times."""
        if times:
            self.counts[name, kernel] = self.counts.get((name, kernel), 0) + times

    @property
    def launches(self) -> int:
        """Return how many kernels run."""
        return sum(kernel.launches * count for (_, kernel), count in self.counts.items())

    def all(self) -> list[Kernel]:
        """Return each kernel as often as it runs."""
        return [kernel for (_, kernel), count in self.counts.items() for _ in range(count)]


def product(rows: float, out: float, inner: float, weights: WeightFormat) -> Kernel:
    """Return rows (rows, inner) times weights (inner, out).

    Args:
        rows: tokens.
        out: width of the result.
        inner: width of the rows.
        weights: their format.
    """
    return Kernel(
        node=0,
        kind="gemm",
        unit=weights.unit,
        flops=2.0 * rows * out * inner,
        read_bytes=float(weights.in_bytes * rows * inner),
        write_bytes=float(HALF * rows * out),
        weight_bytes=weights.bytes_each * out * inner,
        m=float(rows),
        n=float(out),
        k=float(inner),
        in_bytes=weights.in_bytes,
        out_bytes=HALF,
    )


def grouped_product(
    rows: float, out: float, inner: float, weights: WeightFormat, *, groups: float
) -> Kernel:
    """Return the product of rows with the weights of `groups` experts in one kernel.

    Each expert gets its share of the rows, so it is one product of that many rows with matrices
    beside each other; what it reads of the rows is not multiplied.
    """
    one = product(rows / groups, out * groups, inner, weights)
    return one._replace(read_bytes=float(weights.in_bytes * rows * inner))


def batched_product(copies: float, rows: float, out: float, inner: float) -> Kernel:
    """Return `copies` products (rows, inner) × (inner, out) of half precision."""
    return Kernel(
        node=0,
        kind="batched_gemm",
        unit="half",
        flops=2.0 * copies * rows * out * inner,
        read_bytes=HALF * copies * (rows + out) * inner,
        write_bytes=HALF * copies * rows * out,
        m=float(rows),
        n=float(out),
        k=float(inner),
        copies=float(copies),
        in_bytes=HALF,
        out_bytes=HALF,
    )


def attention(
    copies: float,
    queries: float,
    keys: float,
    width: float,
    *,
    read_bytes: float,
    value_dim: float | None = None,
) -> Kernel:
    """Return one fused attention over keys and values that are in memory.

    Its arithmetic is that of all queries with all keys, as everywhere in the law; a causal mask is
    part of its efficiency.

    Args:
        copies: heads of queries × sequences.
        queries: of each.
        keys: that each query meets.
        width: of a key.
        read_bytes: of queries, keys and values.
        value_dim: of a value, if it is not `width`.
    """
    values = width if value_dim is None else value_dim
    return Kernel(
        node=0,
        kind="attention",
        unit="half",
        flops=2.0 * copies * queries * keys * (width + values),
        read_bytes=float(read_bytes),
        write_bytes=HALF * copies * queries * values,
        m=float(queries),
        n=float(keys),
        k=(width + values) / 2,
        copies=float(copies),
        in_bytes=HALF,
        out_bytes=HALF,
    )


def norm(rows: float, width: float, *, tensors: int = 1) -> Kernel:
    """Return a norm over rows; of 2 `tensors` it adds one to the other first and keeps the sum."""
    size = rows * width
    return Kernel(
        node=0,
        kind="layer_norm",
        unit="fp32",
        flops=6.0 * size,
        read_bytes=HALF * tensors * size,
        write_bytes=HALF * tensors * size,
        weight_bytes=float(HALF * width),
        m=float(rows),
        n=float(width),
        in_bytes=HALF,
        out_bytes=HALF,
        run=_run(size),
    )


def gate(rows: float, width: float) -> Kernel:
    """Return what multiplies one half of a row by the activated other one; `width` of a half."""
    return Kernel(
        node=0,
        kind="costly_activation",
        unit="fp32",
        flops=5.0 * rows * width,
        read_bytes=HALF * 2 * rows * width,
        write_bytes=HALF * rows * width,
        m=float(rows),
        n=2.0 * width,
        in_bytes=HALF,
        out_bytes=HALF,
        run=_run(2 * rows * width),
    )


def stream(
    kind: str,
    rows: float,
    width: float,
    *,
    reads: float = 1.0,
    in_bytes: int = HALF,
    out_bytes: int | None = None,
    flops: float = 1.0,
    repeated: bool = False,
    in_place: bool = False,
    strided: bool = False,
) -> Kernel:
    """Return a pass over (rows, width) elements.

    Args:
        kind: kernel class.
        rows: of the result.
        width: of a row.
        reads: tensors of that size that it reads.
        in_bytes: per element.
        out_bytes: per element; as `in_bytes` if it is None.
        flops: per element.
        repeated: an operand is spread along an axis.
        in_place: it writes over what it reads.
        strided: it reads another order than it writes.
    """
    size, out = rows * width, in_bytes if out_bytes is None else out_bytes
    return Kernel(
        node=0,
        kind=kind,
        unit="fp32",
        flops=flops * size,
        read_bytes=in_bytes * reads * size,
        write_bytes=float(out * size),
        m=max(reads, 1.0) * rows,
        n=float(width),
        in_bytes=in_bytes,
        out_bytes=out,
        repeated=repeated,
        in_place=in_place,
        strided=strided,
        run=_run(size),
    )


def lookup(rows: float, width: float) -> Kernel:
    """Return the lookup of rows of a table."""
    return stream("gather", rows, width)._replace(
        read_bytes=(HALF * width + INDEX) * rows, run=1, repeated=False
    )


def reduction(rows: float, width: float, *, in_bytes: int = HALF) -> Kernel:
    """Return what makes one number of each row."""
    size = rows * width
    return Kernel(
        node=0,
        kind="reduction",
        unit="fp32",
        flops=float(size),
        read_bytes=float(in_bytes * size),
        write_bytes=float(in_bytes * rows),
        m=float(rows),
        n=float(width),
        in_bytes=in_bytes,
        out_bytes=in_bytes,
    )


def _run(size: float) -> int:
    return int(max(1, min(size, LONGEST_RUN)))
