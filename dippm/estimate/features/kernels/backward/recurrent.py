"""Gradients of recurrent layers: the steps backwards, then the weights."""

from __future__ import annotations

from math import prod

from dippm.estimate.features.kernels.backward.gradients import Gradients
from dippm.estimate.features.kernels.backward.tape import Step


def recurrent(g: Gradients, step: Step, gradient: int) -> None:
    """Launch a record for the arguments and one for the weights, each with the forward's work.

    Autograd keeps arguments, result and what cuDNN reserves: the gates of all steps.
    """
    run, call = g.run, step.call
    forward = run.kernels[step.kernel]
    source = call.inputs[0]
    held = [g.kept(p) for p in call.inputs]
    result = g.result(call.outputs[0])
    width = forward.out_bytes
    gates = max(1.0, forward.n and _gates(call.op)) * width * run.tensor(result).size
    g.keep("gates", gates)
    read = forward.read_bytes + gates + 2.0 * width * run.tensor(result).size
    weights = [p for p in call.inputs if run.tensor(p).roots]
    size = float(width * sum(run.tensor(p).size for p in weights))
    data = forward._replace(
        read_bytes=read, write_bytes=float(width * prod(run.tensor(source).shape)), sources=()
    )
    with g.towards(source):
        made = g.launch(data, (gradient, result, *held), run.tensor(source).shape, width)
    g.give(source, made)
    if weights:
        with g.towards(weights[0]):
            run.emit(data._replace(weight_bytes=0.0, write_bytes=size), (gradient, *held))
        maker = len(run.kernels) - 1
    for position in weights:
        tensor = run.tensor(position)
        made = g.new(tensor.shape)
        run.make(made, width)
        run.states[made].makers = (maker,)
        g.give(position, made)


def _gates(op: str) -> int:
    return {"lstm": 6, "gru": 5}.get(op, 1)
