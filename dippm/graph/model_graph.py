"""`ModelGraph`: the one form in which every framework's model is read.

Sizes are held at the batch that the conversion was made with. If that batch is a marker (a prime
that no other size shares, see `InputSpec`), `at_batch` gives the graph for any batch without
another conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Attribute = int | float | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, static shape (batch included) and dtype of a model input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class OpNode:
    """One operator.

    Attributes:
        op: canonical name, see `dippm.graph.operators`.
        attributes: only those that the operator table lists for this operator.
        in_shapes: activations read, in argument order; parameters are not among them.
        out_shapes: results; images as NCHW whatever the framework used.
        dtype: of the first result.
        macs: multiply-accumulates, 0 if the operator has none.
        flops: 2 · macs + element-wise operations.
        bytes_read: activations read, without parameters.
        bytes_written: results.
        param_bytes: weights of rank 2 and more read by this node (the presence of biases is an
            exporter's whim, so they are not counted).
        absorbed: operators that the canonical rules folded in, in execution order, as canonical
            names; they do not enter equality but `eager` execution launches them again.
    """

    op: str
    attributes: Mapping[str, Attribute]
    in_shapes: tuple[tuple[int, ...], ...]
    out_shapes: tuple[tuple[int, ...], ...]
    dtype: str
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    param_bytes: int
    absorbed: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """Operators in post-order with true data flow.

    Attributes:
        nodes: producers before consumers.
        edges: (producer, consumer) positions in `nodes`, sorted, without duplicates.
        inputs: user inputs, batch included.
        outputs: results, batch included.
        param_bytes: unique parameters, tied weights once, biases included.
        unknown_ops: operators without a canonical name, with their counts; they stay in `nodes`.
        version: of the canonical rules; checkpoints refuse another version.
        batch: the batch size that the shapes are for.
        batch_is_symbolic: false if the model file fixes the batch.
    """

    nodes: tuple[OpNode, ...]
    edges: tuple[tuple[int, int], ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    param_bytes: int
    unknown_ops: Mapping[str, int]
    version: str
    batch: int
    batch_is_symbolic: bool = True
