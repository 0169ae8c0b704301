"""Casts that autocast launches: to half before a product, to float32 for what needs its range."""

from __future__ import annotations

from dataclasses import replace

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.run import Run, Strides
from dippm.model.graph.calls import OperatorCall
from dippm.model.graph.strides import dense_strides_like

TYPED_RESULT = ("softmax", "log_softmax", "reduce_sum", "reduce_prod", "reduce_norm", "cumsum")
"""Operators that autocast asks for a float32 result instead of casting the argument."""


def lower(run: Run, call: OperatorCall, position: int) -> None:
    """Cast an argument of a product to half for this call, if autocast must.

    Parameters are cast once per pass, however many calls read them.
    """
    held, tensor = run.state(position), run.tensor(position)
    if not run.autocast or held.width != 4 or not tensor.is_float:
        return
    if tensor.is_parameter:
        at = weight_cast(run, call, position)
    else:
        kernel = Kernel.stream(call.node, "cast", run.stored(position), 4, 2)
        at = run.emit(kernel, [position])
    run.states[position] = replace(held, width=2, makers=(at,), strides=without_gaps(run, position))


def without_gaps(run: Run, position: int) -> Strides:
    """Return the strides of a copy that keeps the order of axes."""
    shape, strides = run.tensor(position).shape, run.state(position).strides
    return dense_strides_like(shape, strides) if all(strides) else strides


def weight_cast(run: Run, call: OperatorCall, position: int) -> int:
    """Cast a parameter to half, once on a pass; return the kernel to wait for."""
    tensor = run.tensor(position)
    key = (*tensor.roots, tensor.size)
    if key not in run.cast_weights:
        cast = Kernel.stream(call.node, "cast", tensor.size, 4, 2)
        cast = cast._replace(read_bytes=0.0, weight_bytes=4.0 * tensor.size)
        run.cast_weights[key] = run.emit(cast)
    return run.cast_weights[key]


def widen(run: Run, call: OperatorCall, position: int) -> None:
    """Cast an argument to float32 for this call, if it is narrower."""
    held = run.state(position)
    if held.width != 2 or not run.tensor(position).is_float:
        return
    at = run.emit(Kernel.stream(call.node, "cast", run.stored(position), 2, 4), [position])
    run.states[position] = replace(held, width=4, makers=(at,), strides=without_gaps(run, position))


def cast(run: Run, call: OperatorCall) -> None:
    """Launch a cast that the model asks for, if the run makes it one.

    A file holds the precision that it was exported in: there, a cast to float32 and the one back
    both say "float32". Of a half tensor it widens, and of one that was widened so it goes back.
    """
    source, out = call.inputs[0], call.outputs[0]
    held, result = run.state(source), run.tensor(out)
    width, widens = run.natural_width(result), False
    if result.is_float and run.tensor(source).is_float:
        if result.dtype != "float32":
            width = 2 if result.dtype in ("float16", "bfloat16") else run.natural_width(result)
        elif held.width == 2:
            width, widens = 4, True
        elif held.widened:
            width = 2
        else:
            width = held.width
    if width == held.width and result.is_float == run.tensor(source).is_float:
        run.share(out, source, held.strides)
        return
    kernel = Kernel.stream(call.node, "cast", run.stored(source), held.width, width)
    run.emit(kernel, [source])
    run.make(out, width, without_gaps(run, source), widened=widens)
