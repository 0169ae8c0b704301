"""Calls that only move memory: reshapes that are no views, clones, paddings, updates in place."""

from __future__ import annotations

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.run import Run, Strides, images_last, view
from dippm.estimate.features.kernels.streaming import pass_over_memory
from dippm.model.graph.calls import OperatorCall
from dippm.model.graph.operators import PARTIAL_WRITES
from dippm.model.graph.strides import dense_strides, dense_strides_like, view_strides


def viewed(run: Run, call: OperatorCall) -> None:
    """Follow a view; launch the copy of one that cannot be."""
    if view(run, call):
        return
    source, out = call.inputs[0], call.outputs[0]
    shape, held = run.tensor(source).shape, run.state(source)
    _copy(run, call, source, dense_strides(shape))
    strides = view_strides(shape, dense_strides(shape), run.tensor(out).shape)
    run.make(out, held.width, strides, widened=held.widened)


def identity(run: Run, call: OperatorCall) -> None:
    """Pass a tensor on, or launch the copy that was asked for."""
    source, out = call.inputs[0], call.outputs[0]
    held, shape = run.state(source), run.tensor(source).shape
    how, order = call.attributes.get("copies"), call.attributes.get("order", "")
    wanted = _wanted(run, source, str(order), how)
    if how is None:
        run.share(out, source, held.strides if run.tensor(out).shape == shape else None)
    elif (how == "contiguous" and held.strides == wanted) or run.tensor(source).is_number:
        run.share(out, source, held.strides)
    else:
        _copy(run, call, source, wanted)
        run.make(out, held.width, wanted, widened=held.widened)


def _wanted(run: Run, source: int, order: str, how: object) -> Strides:
    shape, held = run.tensor(source).shape, run.state(source).strides
    if order == "channels_last" and len(shape) == 4:
        return dense_strides_like(shape, (run.tensor(source).size, 1, 3, 2))
    if order in ("", "preserve_format") and how != "contiguous" and all(held):
        return dense_strides_like(shape, held)
    dense = dense_strides(shape)
    return held if run.is_dense(source) else dense


def _copy(run: Run, call: OperatorCall, source: int, strides: Strides) -> None:
    held, tensor = run.state(source), run.tensor(source)
    row = tensor.shape[-1] if tensor.shape else 1
    length = run.run_length(source, strides)
    kernel = Kernel.stream(call.node, "copy", tensor.size, held.width)
    kernel = kernel._replace(
        read_bytes=float(held.width * run.stored(source)),
        strided=held.strides != strides,
        m=tensor.size / max(row, 1),
        n=float(row),
        run=length,
        images_last=images_last(run, source),
        repeated=run.stored(source) < tensor.size,
    )
    run.emit(kernel, [source])


def padded(run: Run, call: OperatorCall) -> None:
    """Launch a padding: a constant one fills its result, then copies into it."""
    source, out = call.inputs[0], call.outputs[0]
    held, size = run.state(source), run.tensor(out).size
    if call.spelled.startswith(("reflection", "replication", "circular", "mirror")):
        pass_over_memory(run, call)
        return
    if run.tensor(source).size < size:
        fill = Kernel.stream(call.node, "elementwise", size, held.width)._replace(read_bytes=0.0)
        run.emit(fill)
    _copy(run, call, source, dense_strides(run.tensor(source).shape))
    run.make(out, held.width)


def masked(run: Run, call: OperatorCall) -> None:
    """Launch a masked fill: a copy, unless it works in place, then the fill."""
    source, out = call.inputs[0], call.outputs[0]
    strides = run.state(source).strides
    if not call.in_place and run.tensor(source).size == run.tensor(out).size and all(strides):
        _copy(run, call, source, strides)
        run.make(source, run.state(source).width, strides)
    pass_over_memory(run, call)


def scattered(run: Run, call: OperatorCall) -> None:
    """Launch an update of a tensor at indices.

    What is written as `y[...] = x` was launched when its part was made: the file only puts the part
    back into the whole, which lies there already.
    """
    target, out = call.inputs[0], call.outputs[0]
    if call.spelled in PARTIAL_WRITES and len(call.inputs) > 1:
        run.share(out, target, run.state(target).strides)
        makers = run.states[out].makers + run.state(call.inputs[1]).makers
        run.states[out].makers = tuple(dict.fromkeys(makers))  # parts of parts would double them
        return
    if len(call.inputs) < 2:
        pass_over_memory(run, call)
        return
    source, held = call.inputs[-1], run.state(target)
    if not call.in_place:
        _copy(run, call, target, dense_strides(run.tensor(target).shape))
        run.make(target, held.width)
    size = run.tensor(source).size
    kernel = Kernel.stream(call.node, "gather", max(size, 1), held.width)
    kernel = kernel._replace(
        read_bytes=float(run.state(source).width * run.stored(source)),
        strided=not run.is_dense(source),
        in_place=True,
        n=float((run.tensor(source).shape or (1,))[-1]),
    )
    run.emit(kernel, [target, source])
    run.make(out, held.width, run.state(target).strides)


def created(run: Run, call: OperatorCall) -> None:
    """Launch what fills a new tensor."""
    out = call.outputs[0]
    tensor = run.tensor(out)
    width = run.natural_width(tensor)
    if not call.spelled.startswith(("empty", "newempty", "shape", "resizeas")) and tensor.shape:
        fill = Kernel.stream(call.node, "elementwise", tensor.size, width)._replace(read_bytes=0.0)
        run.emit(fill)
    run.make(out, width)
