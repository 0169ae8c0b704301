"""`KernelTable`: the kernels of a graph as arrays over the batch; `KernelGraph`: data flow.

Every quantity of a kernel is affine in the batch (activations scale, parameters do not), so two
expansions give it for all batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from dippm.errors import ConversionError
from dippm.estimate.conditions import (
    EIGHT_BITS,
    Attention,
    Mode,
    Optimizer,
    Precision,
    Runtime,
)
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
_KIND = {name: i for i, name in enumerate(KERNEL_CLASSES)}
INNER_LAUNCH_SHARE = 0.38
"""Time of a launch inside of a library, over that of one by a line of Python. cuDNN takes 9.9 µs
for each kernel of a recurrent layer on the hosts of our H100 and H200, whose eager mode has 26."""
_PROBES = (2, 6)
"""Batches that determine the line of quantities over the batch."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Kernels as columns.

    Attributes:
        node: position of each kernel's operator, shape (K,).
        kind: index in KERNEL_CLASSES, shape (K,).
        unit: index in UNITS, shape (K,).
        part: index in PARTS, shape (K,); inference is all forward.
        settings: SETTINGS, which do not depend on the batch, shape (K, 10).
        per_sample: growth of QUANTITIES per sample of batch, shape (K, 9).
        fixed: QUANTITIES at batch 0, shape (K, 9).
        input_bytes: (per sample, fixed) bytes of the user inputs.
        batch: the batch that the file fixes; None if any is possible.
        edges: (producer, consumer) positions of kernels, without duplicates, shape (2, E). What
            passes through operators that launch nothing is joined. Kernels that a compiler merged
            may read what one further on in the list writes.
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

        TensorRT chooses its layouts itself; ONNX Runtime holds images as the file does, and runs
        attention in steps, as exporters spell it.
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
        """Return a table of kernels that are ready: their work does not follow a batch."""
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
        bytes_low, bytes_high = (_input_bytes(graph, batch) for batch in (low, high))
        slope = (bytes_high - bytes_low) / (high - low)
        return cls._from(
            kernels, per_sample, at_low - low * per_sample, (slope, bytes_low - low * slope), None
        )

    @classmethod
    def _from(
        cls,
        kernels: list[Kernel],
        per_sample: Floats,
        fixed: Floats,
        input_bytes: tuple[float, float],
        batch: int | None,
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
        )

    def only(self, kernels: Integers) -> KernelTable:
        """Return the table of some of its kernels, by position; without the data flow."""
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
        )

    def quantities(self, batch: int) -> Floats:
        """Return QUANTITIES at a batch, shape (K, 9)."""
        return np.maximum(self.fixed + batch * self.per_sample, 0.0)

    @property
    def launches(self) -> float:
        """Kernels launched in one inference or step, without those inside of library calls."""
        return float(self.settings[:, SETTINGS.index("launches")].sum())

    @property
    def host_launches(self) -> float:
        """Launches, those inside of library calls by the time that they take of the host."""
        inner = self.settings[:, SETTINGS.index("inner_launches")].sum()
        return self.launches + INNER_LAUNCH_SHARE * float(inner)


def _alike(
    sequence: CallSequence, kernels_of: Callable[[CallSequence], list[Kernel]], marker: int
) -> tuple[int, int, list[Kernel], list[Kernel]]:
    """Return two batches and the kernels at them, which are the same but for their sizes.

    A small batch can be as large as another size of the model, by which a rule takes one tensor for
    another; the marker and what it divides are no size of the model.

    Raises:
        ConversionError: if the kernels differ there as well.
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


# The graph of kernels: data flow between them, and which of them are equivalent.
#
# Kernels of repeated blocks have the same features and the same surroundings. A network of a few
# message-passing rounds gives them one answer, so one of them stands for all: the merged graph is
# several times smaller and its result is exactly that of the whole graph.
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """The kernels of a model that differ, and the data flow around each.

    Attributes:
        table: one kernel for each class of kernels with the same attributes and surroundings,
            C of them; without `edges`.
        count: kernels in each class, shape (C,).
        inward: flows into the representative of each class, as (class read, class), shape (2, E);
            one for each flow, so that means over neighbours are those of the whole graph.
        outward: flows out of it, likewise.
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
        """Merge the kernels that as many rounds of message passing cannot tell apart, at any batch.

        Args:
            table: kernels of a model.
            rounds: of message passing.
        """
        columns = [table.kind[:, None], table.unit[:, None], table.part[:, None], table.settings]
        attributes = np.concatenate([*columns, table.per_sample, table.fixed], axis=1)
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
    """Return a colour for each kernel: equal colours mean equal attributes and surroundings.

    Colour refinement (Weisfeiler and Leman 1968): each round adds to a kernel's colour those of
    what it reads and of what reads it, as multisets.

    Args:
        attributes: attributes of each kernel, shape (K, F).
        edges: producer and consumer of each flow, shape (2, E).
        rounds: number of rounds, the distance up to which surroundings count.

    Returns:
        0 to C - 1, shape (K,).
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
    """Scatter integers over 64 bits (splitmix64), so that sums of them tell multisets apart."""
    z = values * _MIX
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
