"""Another batch for a file with a fixed one.

Exporters write the batch of the example as a number: Reshape to (1, 2048). The file is first traced
unchanged, as the reference. In a second trace with the marker, literal shapes get the marker where
the reference has the batch, and every result must equal the reference with one size scaled.
Otherwise the graph cannot have another batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from dippm.model.relax.onnx.tracing import BatchFixedError, Tensor, Tracing, message_start

Shape = tuple[int, ...]
_SHAPE_ARGUMENT = {"Reshape": 1, "Expand": 1, "Resize": 3, "MaxUnpool": 2}


@dataclass(slots=True)
class Rebatch:
    """Adjusts sizes from the file's batch to the marker.

    Attributes:
        reference: shapes at the file's batch, by name.
        batch: the fixed batch of the file.
        marker: the marker batch.
        changed: nodes with adjusted literal sizes.
    """

    reference: Mapping[str, Shape]
    batch: int
    marker: int
    changed: list[str] = field(default_factory=list)

    def adjust(
        self,
        tracer: Tracing,
        node: onnx.NodeProto,
        inputs: list[Tensor | None],
        attributes: Mapping[str, Any],
        scope: str,
    ) -> list[Tensor | None]:
        """Return a node's arguments with the marker in place of the literal batch."""
        if node.op_type == "Concat":
            return self._repeat(tracer, node, inputs, attributes)
        if node.op_type == "Expand" and len(inputs) == 2:
            inputs = [self._one_row(inputs[0], inputs[1]), inputs[1]]
        place = _SHAPE_ARGUMENT.get(node.op_type)
        source = inputs[0] if inputs else None
        if place is None or place >= len(inputs) or source is None:
            return inputs
        target = inputs[place]
        wanted = self.reference.get(scope + node.output[0])
        axis = self._batch_axis(source.shape)
        if target is None or target.data is None or wanted is None or axis is None:
            return inputs
        if any(self._is_scaled(int(n)) for n in target.data.reshape(-1)):
            return inputs
        if node.op_type == "Reshape":
            sizes = self._rebatched_target(
                source.shape, axis, wanted, target.data.reshape(-1).tolist()
            )
        else:
            sizes = self._aligned_axes(source.shape, axis, wanted)
        if sizes is None:
            return inputs
        changed = Tensor(
            f"{target.name}@batch", (len(sizes),), TensorProto.INT64, np.asarray(sizes, np.int64)
        )
        self.changed.append(node.name or node.output[0])
        return [*inputs[:place], changed, *inputs[place + 1 :]]

    def check(self, node: onnx.NodeProto, name: str, shape: Shape) -> None:
        """Raise if a result differs from the reference by more than one scaled size.

        Raises:
            BatchFixedError: naming the operator.
        """
        wanted = self.reference.get(name)
        if wanted is None or wanted == shape:
            return
        pairs = list(zip(shape, wanted, strict=False))
        scaled = [got for got, want in pairs if got != want]
        fits = len(shape) == len(wanted) and len(scaled) == 1
        if not fits or any(
            got != want and got * self.batch != want * self.marker for got, want in pairs
        ):
            raise BatchFixedError(
                message_start(node) + f"its result {wanted} would become {shape} at another batch"
            )

    def check_kept(
        self, node: onnx.NodeProto, inputs: list[Tensor | None], outputs: list[Tensor]
    ) -> None:
        """Raise if an operator selects one sample of the batch.

        Raises:
            BatchFixedError: naming the operator.
        """
        if any(t.data is not None or self._batch_axis(t.shape) is not None for t in outputs):
            return
        read = inputs[:1] if node.op_type == "CastLike" else inputs  # the second only states a type
        if any(t is not None and self._batch_axis(t.shape) is not None for t in read):
            raise BatchFixedError(message_start(node) + "its result holds nothing of the batch")

    def _one_row(self, source: Tensor | None, target: Tensor | None) -> Tensor | None:
        """Return one row of a constant with equal rows per sample, to be expanded."""
        if source is None or source.data is None or target is None or target.data is None:
            return source
        sizes = [int(n) for n in target.data.reshape(-1)]
        axis = self._batch_axis(tuple(sizes))
        place = None if axis is None else axis - len(sizes) + len(source.shape)
        if place is None or place < 0 or source.shape[place] != self.batch:
            return source
        row = source.data.take([0], axis=place)
        if not bool((source.data == row).all()):
            return source
        return Tensor(
            f"{source.name}@row",
            row.shape,
            source.element_type,
            row,
            source.is_learned,
            source.is_parameter,
        )

    def _is_scaled(self, size: int) -> bool:
        return size > 0 and size % self.marker == 0

    def _batch_axis(self, shape: Shape) -> int | None:
        scaled = [i for i, size in enumerate(shape) if self._is_scaled(size)]
        return scaled[0] if len(scaled) == 1 else None

    def _rebatched_target(
        self, source: Shape, axis: int, wanted: Shape, literal: list[int]
    ) -> list[int] | None:
        """Return the target with the marker in it; None if it needs no change."""
        before = prod(source[:axis])
        merged = source[axis] // self.marker * self.batch
        starts = [prod(wanted[:i]) for i in range(len(wanted))]
        inside = [
            i
            for i, (start, size) in enumerate(zip(starts, wanted, strict=True))
            if size == self.batch and before <= start <= before * max(merged // self.batch, 1)
        ]
        if not inside and -1 in literal:
            return None
        place = inside[0] if inside else self._merged_place(wanted, starts, before)
        if place is None:
            return None
        return self._scaled_at(wanted, place)

    def _merged_place(self, wanted: Shape, starts: list[int], before: int) -> int | None:
        """Return the position of the size that merges the batch with another size.

        The last dimension is features, so the one before it is preferred if both fit.
        """
        at = [i for i, start in enumerate(starts) if start == before and wanted[i] > 1]
        if not at or wanted[at[0]] % self.batch:
            return None
        is_last = at[0] == len(wanted) - 1
        return at[0] - 1 if is_last and at[0] > 0 else at[0]

    def _aligned_axes(self, source: Shape, axis: int, wanted: Shape) -> list[int] | None:
        place = axis + len(wanted) - len(source)
        if place < 0 or wanted[place] % self.batch:
            return None
        return self._scaled_at(wanted, place)

    def _scaled_at(self, wanted: Shape, place: int) -> list[int]:
        sizes = list(wanted)
        sizes[place] = sizes[place] // self.batch * self.marker
        return sizes

    def _repeat(
        self,
        tracer: Tracing,
        node: onnx.NodeProto,
        inputs: list[Tensor | None],
        attributes: Mapping[str, Any],
    ) -> list[Tensor | None]:
        """Repeat an argument without a batch for one with a batch: a class token for patches."""
        shapes = [t.shape for t in inputs if t is not None]
        rank = len(shapes[0]) if shapes else 0
        if not rank or self.batch != 1 or len(shapes) != len(inputs):
            return inputs
        joined = int(attributes.get("axis", 0)) % rank
        axes = {self._batch_axis(shape) for shape in shapes} - {None}
        if len(axes) != 1 or joined in axes:
            return inputs
        (axis,) = axes
        assert axis is not None
        result: list[Tensor | None] = []
        for i, tensor in enumerate(inputs):
            assert tensor is not None
            if len(tensor.shape) == rank and tensor.shape[axis] == 1:
                sizes = [self.marker if k == axis else n for k, n in enumerate(tensor.shape)]
                target = Tensor(
                    f"{tensor.name}@batch", (rank,), TensorProto.INT64, np.asarray(sizes, np.int64)
                )
                name = f"{node.output[0]}.repeated{i}"
                tensor = tracer.apply("Expand", [tensor, target], name)
                self.changed.append(node.name or node.output[0])
            result.append(tensor)
        return result
