"""The kernels of a graph as arrays (`KernelTable`), and their merged data flow (`KernelGraph`).

Every quantity of a kernel is affine in the batch (activations scale, parameters do not), so the
kernels at two batches determine it for all batches. Where a tensor has the batch in two of its
sizes, as a contrastive loss compares all samples with all, a third batch adds the square.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from dippm.errors import ConversionError
from dippm.estimate.conditions import EIGHT_BITS, Attention, Mode, Optimizer, Precision, Runtime
from dippm.estimate.features.engine import (
    engine_kernels,
    fold_constants,
    in_eight_bits,
    session_kernels,
)
from dippm.estimate.features.kernel import PARTS, UNITS, Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernels import launched_by, sequence_of, training_step
from dippm.estimate.features.kernels.run import KeptHalf
from dippm.model.graph.calls import CallSequence, batch_rescaler
from dippm.model.graph.model_graph import ModelGraph

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# The kernels of a graph as arrays.

QUANTITIES = (
    "flops",
    "read_bytes",
    "write_bytes",
    "weight_bytes",
    "m",
    "n",
    "k",
    "copies",
    "serial",
)
"""Columns that depend on the batch."""
SETTINGS = (
    "window",
    "stride",
    "in_bytes",
    "out_bytes",
    "strided",
    "launches",
    "images_last",
    "in_place",
    "repeated",
    "run",
    "inner_launches",
)
"""Columns that do not depend on the batch."""
_KIND = {name: i for i, name in enumerate(KERNEL_CLASSES)}
INNER_LAUNCH_SHARE = 0.38
"""Time of a launch inside of a library over that of a launch from Python: cuDNN takes 9.9 µs for
each kernel of a recurrent layer on the hosts of our H100 and H200, eager mode 26 µs."""
_PROBES = (2, 6)
"""Batches at which kernels are expanded, to determine quantities as affine functions."""
_THIRD_PROBE = 5
"""Third batch, over the first one, where quantities may grow with the square of the batch."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """K kernels as columns.

    Attributes:
        node: position of each kernel's operator, shape (K,).
        kind: index in `KERNEL_CLASSES`, shape (K,).
        unit: index in `UNITS`, shape (K,).
        part: index in `PARTS`, shape (K,); all of inference is forward.
        settings: values of `SETTINGS`, which do not depend on the batch, shape (K, 11).
        per_sample: growth of `QUANTITIES` per sample of the batch, shape (K, 9).
        fixed: `QUANTITIES` at batch 0, shape (K, 9).
        input_bytes: bytes of the user inputs per sample, and bytes that do not depend on the batch.
        batch: batch that the file fixes; None if any is possible.
        edges: positions of producing and consuming kernels, without duplicates, shape (2, E). Data
            flow through operators that launch nothing connects the kernels around them. A kernel
            that a compiler fused may read what a later kernel in the list writes.
        squared: growth of `QUANTITIES` per square of the batch, shape (K, 9); None if every
            quantity is affine.
    """

    node: Integers
    kind: Integers
    unit: Integers
    part: Integers
    settings: Floats
    per_sample: Floats
    fixed: Floats
    input_bytes: tuple[float, float]
    batch: int | None
    edges: Integers
    squared: Floats | None = None

    @classmethod
    def of(
        cls,
        graph: ModelGraph,
        precision: Precision = "fp32",
        mode: Mode = "eager",
        *,
        channels_last: bool = False,
        attention: Attention = "fused",
        kept_half: Collection[KeptHalf] = (),
    ) -> KernelTable:
        """Expand a graph into the kernels of inference, see `launched` and `Run`."""
        return cls._expanded(
            graph,
            partial(
                launched_by,
                precision=precision,
                mode=mode,
                channels_last=channels_last,
                attention=attention,
                kept_half=kept_half,
            ),
        )

    @classmethod
    def of_engine(
        cls,
        graph: ModelGraph,
        precision: Precision = "fp16",
        *,
        attention: Attention = "fused",
        runtime: Runtime = "tensorrt",
    ) -> KernelTable:
        """Expand a graph into the kernels of TensorRT or ONNX Runtime.

        TensorRT chooses layouts itself; ONNX Runtime keeps images in the layout of the file, and
        runs attention in the separate steps that exporters write.
        """
        width: Precision = "fp16" if precision in EIGHT_BITS else precision

        def run_by(calls: CallSequence) -> list[Kernel]:
            if runtime == "onnxruntime":
                return session_kernels(launched_by(calls, width, attention="unfused"))
            found = engine_kernels(
                launched_by(calls, width, channels_last=True, attention=attention)
            )
            return in_eight_bits(found) if precision in EIGHT_BITS else found

        def kernels_of(sequence: CallSequence) -> list[Kernel]:
            # a model of weights alone would leave nothing to run, and no time to predict
            return run_by(fold_constants(sequence)) or run_by(sequence)

        return cls._expanded(graph, kernels_of)

    @classmethod
    def of_training(
        cls,
        graph: ModelGraph,
        precision: Precision = "fp32",
        optimizer: Optimizer = "sgd",
        *,
        channels_last: bool = False,
        attention: Attention = "fused",
        checkpointing: bool = False,
    ) -> KernelTable:
        """Expand a graph into the kernels of a training step, see `training_step`."""

        def kernels_of(sequence: CallSequence) -> list[Kernel]:
            step = training_step(
                sequence,
                precision,
                optimizer=optimizer,
                channels_last=channels_last,
                attention=attention,
                checkpointing=checkpointing,
            )
            return step.kernels

        return cls._expanded(graph, kernels_of)

    @classmethod
    def of_kernels(cls, kernels: list[Kernel]) -> KernelTable:
        """Return a table of given kernels, whose work does not depend on a batch."""
        values = _quantities(kernels)
        return cls._from(kernels, np.zeros_like(values), values, (0.0, 0.0), None)

    @classmethod
    def _expanded(
        cls, graph: ModelGraph, kernels_of: Callable[[CallSequence], list[Kernel]]
    ) -> KernelTable:
        sequence = sequence_of(graph)
        if not graph.batch_is_symbolic:
            kernels = kernels_of(sequence.at_batch(graph.batch))
            values = _quantities(kernels)
            return cls._from(
                kernels,
                np.zeros_like(values),
                values,
                (0.0, _input_bytes(graph, graph.batch)),
                graph.batch,
            )
        low, high, kernels, others = _alike(sequence, kernels_of, graph.batch)
        at_low, at_high = _quantities(kernels), _quantities(others)
        per_sample = (at_high - at_low) / (high - low)
        fixed = at_low - low * per_sample
        squared = None
        if has_square(sequence):
            thirds = kernels_of(sequence.at_batch(_THIRD_PROBE * low))
            squared = _square(thirds, low, kernels, others)
        if squared is not None:  # Newton's form: the line + squared (b - low)(b - high)
            per_sample = per_sample - (low + high) * squared
            fixed = fixed + low * high * squared
        bytes_low, bytes_high = (_input_bytes(graph, batch) for batch in (low, high))
        slope = (bytes_high - bytes_low) / (high - low)
        input_bytes = slope, bytes_low - low * slope
        return cls._from(kernels, per_sample, fixed, input_bytes, None, squared=squared)

    @classmethod
    def _from(
        cls,
        kernels: list[Kernel],
        per_sample: Floats,
        fixed: Floats,
        input_bytes: tuple[float, float],
        batch: int | None,
        *,
        squared: Floats | None = None,
    ) -> KernelTable:
        settings = [[float(getattr(k, name)) for name in SETTINGS] for k in kernels]
        return cls(
            node=np.array([k.node for k in kernels], dtype=np.int64),
            kind=np.array([_KIND[k.kind] for k in kernels], dtype=np.int64),
            unit=np.array([UNITS.index(k.unit) for k in kernels], dtype=np.int64),
            part=np.array([PARTS.index(k.part) for k in kernels], dtype=np.int64),
            settings=np.array(settings, dtype=np.float64).reshape(-1, len(SETTINGS)),
            per_sample=per_sample,
            fixed=fixed,
            input_bytes=input_bytes,
            batch=batch,
            edges=_edges(kernels),
            squared=squared,
        )

    def only(self, kernels: Integers) -> KernelTable:
        """Return the table of the kernels at some positions, without the data flow."""
        return replace(
            self,
            node=self.node[kernels],
            kind=self.kind[kernels],
            unit=self.unit[kernels],
            part=self.part[kernels],
            settings=self.settings[kernels],
            per_sample=self.per_sample[kernels],
            fixed=self.fixed[kernels],
            edges=np.zeros((2, 0), dtype=np.int64),
            squared=None if self.squared is None else self.squared[kernels],
        )

    def quantities(self, batch: int) -> Floats:
        """Return `QUANTITIES` at a batch, shape (K, 9)."""
        found = self.fixed + batch * self.per_sample
        if self.squared is not None:
            found = found + float(batch) ** 2 * self.squared
        return np.maximum(found, 0.0)

    @property
    def coefficients(self) -> Floats:
        """Coefficients of `QUANTITIES` as polynomials in the batch, shape (K, 18) or (K, 27)."""
        squared = () if self.squared is None else (self.squared,)
        return np.concatenate([self.per_sample, self.fixed, *squared], axis=1)

    @property
    def launches(self) -> float:
        """Number of launches in one inference or step, without those inside of library calls."""
        return float(self.settings[:, SETTINGS.index("launches")].sum())

    @property
    def host_launches(self) -> float:
        """Number of launches, with those inside of library calls weighted by their host time."""
        inner = self.settings[:, SETTINGS.index("inner_launches")].sum()
        return self.launches + INNER_LAUNCH_SHARE * float(inner)


def _alike(
    sequence: CallSequence, kernels_of: Callable[[CallSequence], list[Kernel]], marker: int
) -> tuple[int, int, list[Kernel], list[Kernel]]:
    """Return two batches and the kernels at them, which differ in their sizes only.

    A small batch may equal another size of the model, so that a rule confuses tensors. The marker
    batch and its multiples are not sizes of the model, and are tried next.

    Raises:
        ConversionError: if the kernels differ for these batches as well.
    """
    for low, high in (_PROBES, (marker, 3 * marker)):
        kernels, others = (kernels_of(sequence.at_batch(batch)) for batch in (low, high))
        if [kernel.node for kernel in kernels] == [kernel.node for kernel in others]:
            return low, high, kernels, others
    raise ConversionError(
        f"the model launches {len(kernels)} kernels at batch {low:,} and {len(others)} at batch "
        f"{high:,}, so that no batch tells what another one costs",
        'Give the complete input of the batch in question: input="fixed:8,3,224,224".',
    )


def has_square(sequence: CallSequence) -> bool:
    """Return whether a tensor has the batch in two of its sizes, or its square in one."""
    if sequence.batch == 1:  # marks nothing
        return False
    doubled = batch_rescaler(sequence.batch, 2 * sequence.batch)
    return any(
        prod(map(doubled, shape)) > 2 * prod(shape)
        for shape in {tensor.shape for tensor in sequence.tensors}
    )


def _square(
    thirds: list[Kernel], low: int, kernels: list[Kernel], others: list[Kernel]
) -> Floats | None:
    """Return the growth of quantities per square of the batch; None if there is none.

    Args:
        thirds: kernels at `_THIRD_PROBE` times the lower batch.
        low: lower batch; the higher one is three times as large.
        kernels: kernels at the lower batch.
        others: kernels at the higher batch.
    """
    if [kernel.node for kernel in thirds] != [kernel.node for kernel in kernels]:
        return None
    # The second difference of equidistant points is twice the coefficient times the step squared.
    first, second, third = map(_quantities, (kernels, others, thirds))
    found = (third - 2 * second + first) / (2 * (2 * low) ** 2)
    return found if found.any() else None


def _quantities(kernels: list[Kernel]) -> Floats:
    rows = [[float(getattr(k, name)) for name in QUANTITIES] for k in kernels]
    return np.array(rows, dtype=np.float64).reshape(-1, len(QUANTITIES))


def _edges(kernels: list[Kernel]) -> Integers:
    pairs = [(source, i) for i, kernel in enumerate(kernels) for source in kernel.sources]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T


def _input_bytes(graph: ModelGraph, batch: int) -> float:
    source = graph.as_converted
    size = batch_rescaler(source.batch, batch)
    return float(sum(4 * prod(map(size, spec.shape)) for spec in source.inputs))


# The graph of kernels, with equivalent kernels merged.
#
# Kernels of repeated blocks have the same features and the same neighbourhoods. A network with a
# few rounds of message passing gives them the same result, so one of them represents all: the
# merged graph is several times smaller, and its result is exactly that of the whole graph.

_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """The distinct kernels of a model, and the data flow around each.

    Attributes:
        table: one representative for each of C classes of kernels with the same attributes and
            neighbourhoods; without `edges`.
        count: number of kernels in each class, shape (C,).
        inward: edges into the representative of each class, as (class read, class), shape (2, E);
            one for each edge, so that means over neighbours are those of the whole graph.
        outward: edges out of the representative of each class, as (class that reads, class), shape
            (2, E).
        class_of: class of each kernel of the whole table, shape (K,).
        launches: number of launches of the whole table.
    """

    table: KernelTable
    count: Integers
    inward: Integers
    outward: Integers
    class_of: Integers
    launches: float

    @classmethod
    def of(cls, table: KernelTable, rounds: int) -> KernelGraph:
        """Merge the kernels that message passing cannot distinguish, at any batch.

        Args:
            table: kernels of a model.
            rounds: number of rounds of message passing.
        """
        columns = [table.kind[:, None], table.unit[:, None], table.part[:, None], table.settings]
        attributes = np.concatenate([*columns, table.coefficients], axis=1)
        edges = table.edges
        colour = refined(attributes, edges, rounds)
        _, stands, count = np.unique(colour, return_index=True, return_counts=True)
        chosen = np.zeros(len(colour), dtype=bool)
        chosen[stands] = True
        return cls(
            table=table.only(stands),
            count=count.astype(np.int64),
            inward=colour[edges[:, chosen[edges[1]]]],
            outward=colour[edges[::-1][:, chosen[edges[0]]]],
            class_of=colour,
            launches=table.launches,
        )


def refined(attributes: NDArray[np.float64], edges: Integers, rounds: int) -> Integers:
    """Return a colour for each kernel: equal colours mean equal attributes and neighbourhoods.

    Colour refinement (Weisfeiler and Leman 1968): each round extends a kernel's colour by the
    multisets of the colours of its producers and of its consumers.

    Args:
        attributes: attributes of each kernel, shape (K, F).
        edges: producer and consumer of each edge, shape (2, E).
        rounds: number of rounds, which is the radius of the neighbourhoods.

    Returns:
        Colours from 0 to C - 1, shape (K,).
    """
    _, colour = np.unique(attributes, axis=0, return_inverse=True)
    colour = colour.ravel()
    for _ in range(rounds):
        hashed = _mixed(colour.astype(np.uint64) + np.uint64(1))
        inward = np.zeros(len(colour), dtype=np.uint64)
        outward = np.zeros(len(colour), dtype=np.uint64)
        np.add.at(inward, edges[1], hashed[edges[0]])
        np.add.at(outward, edges[0], hashed[edges[1]])
        rows = np.stack([colour.astype(np.uint64), inward, outward], axis=1)
        _, colour = np.unique(rows, axis=0, return_inverse=True)
        colour = colour.ravel()
    return np.asarray(colour, dtype=np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash integers to 64 bits (splitmix64), so that sums of hashes distinguish multisets."""
    z = values * _MIX
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
