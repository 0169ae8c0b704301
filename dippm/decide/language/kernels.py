"""The kernels of a language model, as `Kernel`s of the shipped law, with their counts.

Sizes are those of one GPU, in half precision unless a format says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dippm.decide.language.setting import WeightFormat
from dippm.estimate.features.kernel import Kernel

HALF, FULL = 2, 4
"""Bytes per element."""
INDEX = 8
LONGEST_RUN = 4096
"""Cap of the contiguous run length in features, as in `dippm.estimate.features.kernels`."""


class Pass(NamedTuple):
    """One pass through a decoder.

    Attributes:
        batch: number of sequences.
        queries: new tokens per sequence.
        context: tokens per sequence after the pass, including the new ones.
        scored: tokens per sequence for which the head computes logits.
    """

    batch: int
    queries: int
    context: int
    scored: int = 1

    @property
    def tokens(self) -> int:
        """Return the number of new tokens of all sequences."""
        return self.batch * self.queries

    @property
    def is_decode(self) -> bool:
        """Return whether each sequence gets exactly one more token."""
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
    """Kernels with their names and numbers of runs, in the order of their first run.

    Attributes:
        counts: number of runs by (name, kernel).
        reduced_bytes: bytes of each all-reduce.
    """

    counts: dict[tuple[str, Kernel], int] = field(default_factory=dict)
    reduced_bytes: list[float] = field(default_factory=list)

    def add(self, name: str, kernel: Kernel, times: int = 1) -> None:
        """Append `times` launches of a kernel."""
        if times:
            self.counts[name, kernel] = self.counts.get((name, kernel), 0) + times

    @property
    def launches(self) -> int:
        """Return the number of launches."""
        return sum(kernel.launches * count for (_, kernel), count in self.counts.items())

    def all(self) -> list[Kernel]:
        """Return every launch, repeated kernels repeatedly."""
        return [kernel for (_, kernel), count in self.counts.items() for _ in range(count)]


def product(rows: float, out: float, inner: float, weights: WeightFormat) -> Kernel:
    """Return the product (rows, inner) × (inner, out).

    Args:
        rows: number of tokens.
        out: width of the result.
        inner: width of the input.
        weights: format of the weights.
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

    Each expert gets its share of the rows, so this is one product of that many rows with the
    experts' matrices side by side, which reads every row once.
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
    share: float = 1.0,
) -> Kernel:
    """Return one fused attention over stored keys and values.

    Args:
        copies: query heads × sequences.
        queries: queries per copy.
        keys: keys per query.
        width: length of a key.
        read_bytes: bytes of queries, keys and values.
        value_dim: length of a value if it is not `width`.
        share: share of the scores that it computes, see `engine.causal_work`.
    """
    values = width if value_dim is None else value_dim
    return Kernel(
        node=0,
        kind="attention",
        unit="half",
        flops=2.0 * share * copies * queries * keys * (width + values),
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
    """Return a norm over rows; with 2 `tensors` it adds them first and stores the sum."""
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
    """Return a gated activation: half of a row times the activated other half of `width`."""
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
    """Return a streaming kernel over (rows, width) elements.

    Args:
        kind: kernel class.
        rows: rows of the result.
        width: width of a row.
        reads: number of tensors of that size that it reads.
        in_bytes: bytes per element read.
        out_bytes: bytes per element written; None for `in_bytes`.
        flops: operations per element.
        repeated: whether an operand is broadcast along an axis.
        in_place: whether the result overwrites an operand.
        strided: whether elements are read in another order than they are written.
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
    """Return a reduction of each row to one number."""
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
