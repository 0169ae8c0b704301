"""Recurrent layers: a library call for each layer, however many steps it takes."""

from __future__ import annotations

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.casts import lower
from dippm.estimate.features.kernels.products import copied, macs, product
from dippm.estimate.features.kernels.run import Run
from dippm.model.graph.calls import Call

SERIAL_PER_STEP = 30.0
"""Trips to memory that a step of a layer waits for: about 9 µs, whatever the GPU."""


def recurrent(run: Run, call: Call) -> None:
    """Launch one record for all layers: each is one launch, whose products wait for each other.

    `torch.compile` breaks its graph here (`torch._dynamo.config.allow_rnn` is off unless somebody
    sets it), so that casts, copies and steps are those of eager mode.
    """
    first = len(run.kernels)
    a = call.attributes
    hidden, steps = float(a.get("hidden_size", 1)), float(a.get("steps", 1))
    out = run.tensor(call.outputs[0])
    work = macs(run, call)
    for position in call.inputs:
        lower(run, call, position)
        tensor = run.tensor(position)
        if run.autocast and tensor.is_parameter and len(tensor.shape) > 1:
            run.emit(Kernel.stream(call.node, "cast", max(tensor.shape), 4, 2))  # its bias
    copied(run, call, call.inputs[0], run.tensor(call.inputs[0]).size)
    layers = max(1, int(a.get("layers", 1)) * int(a.get("directions", 1)))
    product(
        run,
        call,
        "recurrent",
        (out.size / max(hidden * steps, 1.0), hidden, hidden),
        copies=steps * layers,
        flops=2.0 * work,
        operands=call.inputs,
    )
    run.kernels[-1] = run.kernels[-1]._replace(
        launches=layers, serial=SERIAL_PER_STEP * steps * layers
    )
    run.graph_breaks.append(range(first, len(run.kernels)))
    for other in call.outputs[1:]:
        run.make(other, run.product_width)
