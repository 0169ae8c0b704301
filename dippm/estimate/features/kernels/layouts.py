"""Views, and the order of axes that a call gives its result."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dippm.estimate.features.kernels.run import Run, Strides
from dippm.model.graph.calls import OperatorCall
from dippm.model.graph.draft import Shape
from dippm.model.graph.macs import is_complex
from dippm.model.graph.strides import (
    broadcast_strides,
    dense_strides,
    dense_strides_like,
    is_channels_last,
    view_strides,
)

TO_CHANNELS_FIRST = (0, 3, 1, 2)


def view(run: Run, call: OperatorCall) -> bool:
    """Follow a call that shares the memory of its argument; tell whether it does."""
    source = call.inputs[0]
    given, shape = run.state(source).strides, run.tensor(source).shape
    out = call.outputs[0]
    if call.op == "transpose":
        if call.attributes.get("layout"):
            run.share(out, source, _renamed(run, call))
        else:
            run.share(out, source, tuple(given[a] for a in call.attributes["permutation"]))
        return True
    if call.op == "reshape":
        strides = view_strides(shape, given, run.tensor(out).shape)
        if strides is None:
            return False
        run.share(out, source, strides)
        return True
    if call.op == "broadcast":
        run.share(out, source, broadcast_strides(shape, given, run.tensor(out).shape))
        return True
    if is_complex(run.tensor(source).dtype) and not is_complex(run.tensor(out).dtype):
        given = tuple(2 * stride for stride in given)  # real or imaginary parts: every other number
    for part in call.outputs:
        same_rank = len(run.tensor(part).shape) == len(shape)
        run.share(part, source, given if same_rank else _taken(run, call, part))
    return True


def _renamed(run: Run, call: OperatorCall) -> Strides:
    """Return the strides of images whose axes are only named in another order."""
    shape = run.tensor(call.outputs[0]).shape
    if run.channels_last and tuple(call.attributes["permutation"]) == TO_CHANNELS_FIRST:
        return dense_strides_like(shape, (prod(shape), 1, 3, 2))
    return dense_strides(shape)


def _taken(run: Run, call: OperatorCall, part: int) -> Strides:
    """Return the strides of one index of an axis."""
    source = call.inputs[0]
    given, shape = run.state(source).strides, run.tensor(source).shape
    left = run.tensor(part).shape
    axis = call.attributes.get("axis")
    if isinstance(axis, int) and len(left) == len(shape) - 1:
        return tuple(stride for i, stride in enumerate(given) if i != axis % len(shape))
    return dense_strides(left)


def elementwise_strides(run: Run, positions: Sequence[int], shape: Shape) -> Strides:
    """Return the strides of what element-wise calls write: the order of their first operand."""
    for position in positions:
        if run.tensor(position).shape == shape:
            strides = run.state(position).strides
            if all(strides[axis] or n == 1 for axis, n in enumerate(shape)):
                return dense_strides_like(shape, strides)
    return dense_strides(shape)


def images_last(run: Run, position: int) -> bool:
    """Return whether a tensor holds images with their channels next to each other."""
    shape = run.tensor(position).shape
    if len(shape) != 4:
        return False
    if run.channels_last and shape[2:] == (1, 1):
        return True
    return is_channels_last(shape, run.state(position).strides)


def image_strides(run: Run, source: int, shape: Shape) -> Strides:
    """Return the strides of images that a layer makes of others, in the same order."""
    if images_last(run, source):
        return dense_strides_like(shape, (prod(shape), 1, 3, 2))
    return dense_strides(shape)
