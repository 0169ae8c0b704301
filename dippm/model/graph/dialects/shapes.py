"""Readers of operators that move, select or join data."""

from __future__ import annotations

from collections.abc import Callable

from dippm.model.graph.dialects.call import RawCall
from dippm.model.graph.draft import Shape, Value

Build = Callable[[Value, Shape], Value]


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the permutation from N, C, spatial to N, spatial, C."""
    return (0, *range(2, rank), 1)


def channels_first_axes(rank: int) -> tuple[int, ...]:
    """Return the permutation from N, spatial, C to N, C, spatial."""
    return (0, rank - 1, *range(1, rank - 1))


def permute(shape: Shape, permutation: tuple[int, ...]) -> Shape:
    """Return a shape with its axes permuted."""
    return tuple(shape[axis] for axis in permutation)


def is_channels_last(call: RawCall) -> bool:
    """Return whether a call says that channels are the last axis of its images."""
    layout = call.text("data_layout", "layout", "data_format", default="NC")
    return len(layout) > 2 and layout.endswith("C")


def channels_first(call: RawCall, build: Build) -> bool:
    """Apply `build` to N, C, spatial; surround it with layout changes for other calls.

    These changes are marked `layout`: they only make shapes agree, no framework runs them.
    """
    if not is_channels_last(call):
        result = build(call.inputs[0], call.out_shape)
        assert result.producer is not None
        _rename(call, result)
        return True
    rank = len(call.out_shape)
    first, last = channels_first_axes(rank), channels_last(rank)
    source = call.step(
        "transpose",
        call.inputs[:1],
        permute(call.inputs[0].shape, first),
        permutation=first,
        layout=1,
    )
    result = build(source, permute(call.out_shape, first))
    return call.first("transpose", [result], permutation=last, layout=1)


def _rename(call: RawCall, result: Value) -> None:
    """Make the node that computes `result` write this call's own result."""
    node = result.producer
    assert node is not None
    node.outputs[0] = call.outputs[0]
    call.outputs[0].producer = node


def _transpose(call: RawCall) -> bool:
    rank = len(call.out_shape)
    axes = call.integers("axes", "perm", "dims", "arg1")
    if axes is None and "dim0" in call.attributes:
        axes = _swap_axes(rank, call.integer("dim0", default=0), call.integer("dim1", default=1))
    if axes is None or len(axes) != rank:
        axes = tuple(reversed(range(rank)))
    permutation = tuple(a % rank for a in axes) if rank else ()
    return call.first("transpose", call.inputs[:1], permutation=permutation)


def _swap_axes(rank: int, first: int, second: int) -> tuple[int, ...]:
    axes = list(range(rank))
    axes[first % rank], axes[second % rank] = axes[second % rank], axes[first % rank]
    return tuple(axes)


def _moved(call: RawCall) -> bool:
    """`movedim`: the axes `source` go to the positions `destination`, others keep their order."""
    rank = len(call.out_shape)
    moved = [axis % rank for axis in call.integers("source", "arg1") or ()]
    places = [axis % rank for axis in call.integers("destination", "arg2") or ()]
    if not moved or len(moved) != len(places):
        return False
    rest = iter([axis for axis in range(rank) if axis not in moved])
    at = dict(zip(places, moved, strict=True))
    permutation = tuple(at[i] if i in at else next(rest) for i in range(rank))
    return call.first("transpose", call.inputs[:1], permutation=permutation)


def _reshape(call: RawCall) -> bool:
    return call.first("reshape", call.inputs[:1])


def _broadcast(call: RawCall) -> bool:
    return call.first("broadcast", call.inputs[:1])


def _concat(call: RawCall) -> bool:
    axis = call.integer("axis", "dim", "concat_dim", default=0)
    data = [v for v in call.inputs if v.shape or len(call.inputs) == 1]
    return call.first("concat", data, axis=axis % max(len(call.out_shape), 1))


def _stack(call: RawCall) -> bool:
    axis = call.integer("axis", "dim", default=0) % len(call.out_shape)
    shape = tuple(1 if i == axis else size for i, size in enumerate(call.out_shape))
    rows = [call.step("reshape", [v], shape) for v in call.inputs]
    return call.first("concat", rows, axis=axis)


def _split(call: RawCall) -> bool:
    axis = call.integer("axis", "dim", "split_dim", default=0)
    source = call.inputs[-1] if call.name == "tf.Split" else call.inputs[0]
    call.emit("split", [source], axis=axis % len(source.shape))
    return True


def _unstack(call: RawCall) -> bool:
    source = call.inputs[0]
    axis = call.integer("axis", "dim", default=0) % len(source.shape)
    shape = tuple(1 if i == axis else size for i, size in enumerate(source.shape))
    pieces = [Value(shape, source.dtype) for _ in call.outputs]
    call.draft.emit("split", [source], outputs=pieces, axis=axis)
    for piece, out in zip(pieces, call.outputs, strict=True):
        call.draft.emit("reshape", [piece], outputs=[out])
    return True


def _slice(call: RawCall) -> bool:
    source = call.inputs[0]
    steps = call.integers("strides", "step", "arg4") or (1,)
    if any(step < 0 for step in steps):
        return call.first("flip", [source])
    shape = call.out_shape
    if len(shape) == len(source.shape):
        return call.first("slice", [source], axis=_cut_axis(source.shape, shape))
    cut = call.step("slice", [source], shape, axis=0)
    assert cut.producer is not None
    _rename(call, cut)
    return True


def _cut_axis(source: Shape, result: Shape) -> int:
    return next((i for i, (a, b) in enumerate(zip(source, result, strict=True)) if a != b), 0)


def _take(call: RawCall) -> bool:
    source, index = call.inputs[0], call.inputs[1] if len(call.inputs) > 1 else None
    axis = call.axis("axis", "dim", default=0)
    if index is None or (index.size == 1 and index.is_static):
        return call.first("slice", [source], axis=axis)
    return _gather(call, source, index, axis)


def _gather(call: RawCall, table: Value, index: Value, axis: int) -> bool:
    if axis == 0 and len(table.shape) == 2 and len(call.out_shape) == len(index.shape) + 1:
        rows, width = table.shape
        return call.first("embedding", [table, index], rows=rows, width=width)
    return call.first("gather", [table, index])


def _embedding(call: RawCall) -> bool:
    table, index = call.inputs[0], call.inputs[1]
    return _gather(call, table, index, 0)


def _pad(call: RawCall) -> bool:
    """Keep the padding widths as (begin, end) per axis if they are known."""
    rank = len(call.out_shape)
    widths = call.integers("pad_width", "paddings", "pads")
    value = call.number("pad_value", "value", "constant_values", default=0.0)
    constant = call.text("pad_mode", "mode", default="constant").lower() == "constant"
    if call.name.startswith(("aten.", "onnx.")) or widths is None or len(widths) != 2 * rank:
        return call.first("pad", call.inputs[:1])
    zero = int(constant and value == 0.0 and len(call.inputs) == 1)
    return call.first("pad", call.inputs[:1], widths=widths, zero=zero)


READERS: dict[str, Callable[[RawCall], bool]] = {
    "transpose": _transpose,
    "movedim": _moved,
    "moveaxis": _moved,
    "reshape": _reshape,
    "broadcast": _broadcast,
    "concat": _concat,
    "stack": _stack,
    "pack": _stack,
    "split": _split,
    "unstack": _unstack,
    "unpack": _unstack,
    "unbind": _unstack,
    "slice": _slice,
    "aten.select": _slice,  # TensorFlow's Select is a choice between two tensors
    "take": _take,
    "gatherv2": _take,
    "onnx.gather": _take,
    "embedding": _embedding,
    "pad": _pad,
}
