"""Strides through views as in eager execution: which layout changes really copy.

A transpose costs nothing by itself. The reshape after it, or an operator that needs a contiguous
argument, makes the copy. Products with several leading axes copy operands whose leading axes are
not contiguous in memory; such a copy is recorded in `absorbed` as "transpose".
"""

from __future__ import annotations

from math import prod

from dippm.model.graph.draft import Draft, Node, Shape, Value, producer_of
from dippm.model.graph.operators import is_elementwise

Strides = tuple[int, ...] | None
"""Strides in elements; None for a layout that is not followed any further."""

_KEEPS_CHANNELS_LAST = ("conv2d", "batch_norm", "max_pool", "avg_pool", "resize")
_WANTS_CONTIGUOUS = ("layer_norm", "rms_norm", "group_norm", "dense")


def mark_copies(draft: Draft) -> None:
    """Set the attribute `copies` of transposes and reshapes: 1 if a kernel moves the data."""
    strides: dict[int, Strides] = {}
    for node in draft.nodes:
        if node.op == "transpose":
            node.attributes.setdefault("copies", 0)
        _follow(node, strides)


def dense_strides(shape: Shape) -> tuple[int, ...]:
    """Return the strides of a dense tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def _follow(node: Node, strides: dict[int, Strides]) -> None:
    def of(value: Value) -> Strides:
        return strides.get(id(value), dense_strides(value.shape))

    source = node.inputs[0] if node.inputs else None
    if source is None or source.is_static:
        return
    if node.op == "batch_matmul" or "batch_matmul" in node.absorbed:
        operands = [v for v in node.inputs[:3] if not v.is_static and len(v.shape) > 3]
        copied = sum(not _is_batch_of_matrices(v.shape, of(v)) for v in operands)
        node.absorbed[:0] = ["transpose"] * copied
        return
    given = of(source)
    if node.op == "transpose" and given is not None:
        strides[id(node.out)] = tuple(given[a] for a in node.attributes["permutation"])
    elif node.op == "reshape":
        result = None
        if given is not None:  # () of a number is known as well
            result = view_strides(source.shape, given, node.out.shape)
        if result is None:
            _note_copy(node, source)
        else:
            strides[id(node.out)] = result
    elif node.op in ("slice", "split") and given is not None:
        for out in node.outputs:
            if len(out.shape) == len(source.shape):
                strides[id(out)] = given
    elif node.op == "broadcast" or node.op == "unfold":
        strides[id(node.out)] = None
    elif node.op in _WANTS_CONTIGUOUS and given is not None:
        flat = (source.size // max(source.shape[-1], 1), source.shape[-1])
        if view_strides(source.shape, given, flat) is None or given[-1] != 1:
            _note_copy(node, source)
    elif node.op in _KEEPS_CHANNELS_LAST and given and is_channels_last(source.shape, given):
        strides[id(node.out)] = dense_strides_like(node.out.shape, given)
    elif is_elementwise(node.op) and source.shape == node.out.shape and given is not None:
        strides[id(node.out)] = dense_strides_like(source.shape, given)


def is_channels_last(shape: Shape, strides: tuple[int, ...]) -> bool:
    """Return whether an N, C, H, W tensor holds its channels next to each other in memory."""
    return len(shape) == 4 and shape[1] > 1 and strides[1] == 1 and strides != dense_strides(shape)


def _is_batch_of_matrices(shape: Shape, strides: Strides) -> bool:
    """Return whether the leading axes are contiguous, as a batched product needs them."""
    leading = shape[:-2]
    return strides is not None and view_strides(leading, strides[:-2], (prod(leading),)) is not None


def _note_copy(node: Node, source: Value) -> None:
    before = producer_of(source, "transpose")
    if before is not None:
        before.attributes["copies"] = 1
    elif node.op == "reshape":
        node.attributes["copies"] = 1


def dense_strides_like(shape: Shape, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return dense strides that keep the memory order of the axes."""
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
    result = [1] * len(shape)
    step = 1
    for axis in reversed(order):
        result[axis] = step
        step *= shape[axis]
    return tuple(result)


def broadcast_strides(shape: Shape, strides: tuple[int, ...], wide: Shape) -> tuple[int, ...]:
    """Return the strides of a broadcast tensor: 0 along the repeated axes."""
    missing = len(wide) - len(shape)
    return tuple(
        0 if i < missing or (shape[i - missing] == 1 and size != 1) else strides[i - missing]
        for i, size in enumerate(wide)
    )


def view_strides(old: Shape, strides: tuple[int, ...], new: Shape) -> tuple[int, ...] | None:
    """Return the strides of a reshape without a copy; None if it needs one.

    The same memory may also be read as wider or narrower elements along the last axis: pairs of
    real numbers as complex ones, and back. Strides then count the new elements.
    """
    if prod(old) != prod(new):
        return _as_other_elements(old, strides, new)
    # As PyTorch does: merge contiguous old axes into blocks, then split each block into new axes,
    # innermost first. A new axis that would span two blocks needs a copy.
    kept = [(size, stride) for size, stride in zip(old, strides, strict=True) if size != 1]
    blocks: list[list[int]] = []  # [size, innermost stride] of contiguous axes
    for size, stride in kept:
        if blocks and blocks[-1][1] == stride * size:
            blocks[-1][0] *= size
            blocks[-1][1] = stride
        else:
            blocks.append([size, stride])
    result = [1] * len(new)
    axis = len(new) - 1
    for size, stride in reversed(blocks):
        taken = 1
        while axis >= 0 and taken < size:
            result[axis] = stride * taken
            taken *= new[axis]
            axis -= 1
        if taken != size:
            return None
    return tuple(result)


def _as_other_elements(old: Shape, strides: tuple[int, ...], new: Shape) -> tuple[int, ...] | None:
    """Return the strides of memory read as elements of another width; None if it is not.

    The last axis counts the parts of an element: it disappears (a pair becomes a complex
    number), appears (the reverse), or changes its size.
    """
    narrower = len(old) == len(new) + 1 or (len(old) == len(new) and prod(old) > prod(new))
    wide, fine = (new, old) if narrower else (old, new)
    rest = len(fine) - 1
    parts = prod(fine) // max(prod(wide), 1)
    if fine[:rest] != wide[:rest] or len(wide) not in (rest, rest + 1) or parts < 2:
        return None
    if prod(fine) != parts * prod(wide):
        return None
    if not narrower:
        # Every stride counts `parts` narrow elements per wide one.
        spread_out = tuple(stride * parts for stride in strides[:rest])
        return (*spread_out, 1) if strides[rest:] in ((), (1,)) else None
    # A wide element needs adjacent parts, and strides of whole wide elements.
    moved = [stride for size, stride in zip(old[:rest], strides, strict=False) if size != 1]
    if strides[rest] != 1 or any(stride % parts for stride in moved):
        return None
    return tuple(max(stride // parts, 1) for stride in strides[:rest]) + (1,) * (len(wide) - rest)
