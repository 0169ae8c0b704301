"""What a forward pass launches in another way when gradients will be asked for."""

from __future__ import annotations

from dataclasses import replace

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.run import Run
from dippm.estimate.features.kernels.streaming import pass_over_memory
from dippm.model.graph.calls import Call

COUNTER_BYTES = 8
OVERWRITTEN = frozenset(
    "silu hard_swish hard_sigmoid mish gelu relu6 clip softplus multiply divide".split()
)
"""Calls whose gradient needs the argument, which autograd copies before it is written over."""


def batch_norm(run: Run, call: Call) -> None:
    """Launch the count of batches, and cuDNN's norm, which reads its argument twice."""
    counter = Kernel.stream(call.node, "broadcast", 1, COUNTER_BYTES)
    run.emit(counter._replace(in_place=True))
    pass_over_memory(run, call)
    norm = run.kernels[-1]
    run.kernels[-1] = norm._replace(read_bytes=2.0 * norm.read_bytes, flops=2.0 * norm.flops)


def needs_copy(run: Run, call: Call) -> bool:
    """Tell whether autograd copies the argument of a call that works in place."""
    if not call.in_place or call.op not in OVERWRITTEN:
        return False
    return not any(run.tensor(p).is_number for p in call.inputs[1:])


def copied_first(run: Run, call: Call) -> None:
    """Launch the copy of what a call writes over, then the call."""
    source = call.inputs[0]
    held = run.state(source)
    at = run.emit(Kernel.stream(call.node, "copy", run.stored(source), held.width), [source])
    run.states[source] = replace(held, makers=(at,))
    pass_over_memory(run, call)
