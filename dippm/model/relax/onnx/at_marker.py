"""A trace at a marker batch, which stands for any batch, or else at the file's own batch.

A file with a fixed batch is tried with the marker all the same. Only if its inner sizes do not
allow that does the graph keep the file's batch, with a note that names the operator responsible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from dippm.errors import ConversionError, InputShapeError
from dippm.model.relax.onnx.inputs import Binding
from dippm.model.relax.onnx.rebatch import Rebatch
from dippm.model.relax.onnx.trace import trace
from dippm.model.relax.onnx.tracing import BatchIsTimeError, ShapeMismatchError, Trace


@dataclass(frozen=True, slots=True)
class TraceAtBatch:
    """A trace and its batch.

    Attributes:
        trace: the trace, with notes.
        batch: batch size of its shapes.
        is_symbolic: whether the batch is a marker.
    """

    trace: Trace
    batch: int
    is_symbolic: bool


def trace_at_marker(
    model: onnx.ModelProto, binding: Binding, candidates: Sequence[int]
) -> TraceAtBatch:
    """Return the trace of a model at a marker batch, else at the fixed batch of the file.

    Args:
        model: model as `trace` takes it.
        binding: binding of its inputs.
        candidates: marker batches, see `frontend.MARKER_BATCHES`.

    Raises:
        InputShapeError: if the sizes do not fit the model, or its batch is unknown.
        ConversionError: if an operator's result has no static shape.
    """
    if not binding.has_batch:
        traced = _as_it_is(model, binding, 1, None)
        if binding.lacks_common_size:
            note = (
                "the inputs have no common first dimension: they are taken as they are, without a "
                "batch"
            )
            traced = replace(traced, trace=replace(traced.trace, notes=(*traced.trace.notes, note)))
        return traced
    marker = _free_marker(model, binding, candidates)
    try:
        return _any_batch(model, binding, marker)
    except BatchIsTimeError as error:
        second = binding.with_batch_at(1)
        if second is not None:
            return trace_at_marker(model, second, candidates)
        raise InputShapeError(
            f"the file does not say which dimension of its inputs is the batch: {error}",
            binding.how_to_name_the_batch(),
        ) from error
    except ShapeMismatchError as error:
        return _as_it_is(model, binding, binding.fixed_batch or 1, error)
    except ConversionError as error:
        if binding.fixed_batch is None:
            raise
        return _as_it_is(model, binding, binding.fixed_batch, error)


def _any_batch(model: onnx.ModelProto, binding: Binding, marker: int) -> TraceAtBatch:
    rebatch = None
    if binding.fixed_batch is not None:
        reference = _trace(model, binding, binding.fixed_batch, 0)
        rebatch = Rebatch(reference.shapes, binding.fixed_batch, marker)
    traced = _trace(model, binding, marker, marker, rebatch)
    if rebatch is not None and rebatch.changed:
        note = (
            f"the file fixes batch {rebatch.batch}, also inside ({rebatch.changed[0]!r}"
            f"{f' and {len(rebatch.changed) - 1} more' * (len(rebatch.changed) > 1)}); it was "
            "converted as if exported with a dynamic batch"
        )
        traced = replace(traced, notes=(*traced.notes, note))
    return TraceAtBatch(traced, marker, True)


def _as_it_is(
    model: onnx.ModelProto, binding: Binding, batch: int, why: Exception | None
) -> TraceAtBatch:
    try:
        traced = _trace(model, binding, batch, 0)
    except ShapeMismatchError as error:
        raise InputShapeError(
            f"the model does not take inputs of these sizes {_text(binding, batch)}: {error}",
            "Give the sizes that the model was exported for, or export it again with dynamic "
            "sizes.",
        ) from (why or error)
    notes = list(traced.notes)
    if why is not None and isinstance(why, ShapeMismatchError):
        notes.append(f"the graph holds for batch {batch} only: {why}")
    return TraceAtBatch(replace(traced, notes=tuple(notes)), batch, False)


def _trace(
    model: onnx.ModelProto,
    binding: Binding,
    batch: int,
    marker: int,
    rebatch: Rebatch | None = None,
) -> Trace:
    return trace(
        model,
        binding.shapes(batch),
        marker,
        values=binding.values,
        symbols=binding.symbols(batch) if binding.keeps_file_sizes(batch) else None,
        rebatch=rebatch,
        is_assumed=bool(binding.assumed),
    )


def _text(binding: Binding, batch: int) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in binding.shapes(batch).items())


def _free_marker(model: onnx.ModelProto, binding: Binding, candidates: Sequence[int]) -> int:
    sizes = set(binding.sizes())
    sizes.update(size for tensor in model.graph.initializer for size in tensor.dims)
    sizes.discard(0)
    free = (m for m in candidates if not any(size % m == 0 for size in sizes))
    return next(free, candidates[0])
