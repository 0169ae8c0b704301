"""The kernels that a model launches: its calls, for a precision and an execution mode.

A latency is spent by kernels, not by operators: an eager framework launches a batch norm that an
exporter would have folded, casts what autocast feeds to a tensor core, and copies a permuted view
before it reshapes it. Views cost nothing and launch nothing.

    launch          the way in, and which rule launches what of which call, also of a graph that
                    no file was read for
    run             what is known of a run: width, layout and maker of each tensor; views, strides
    casts           what autocast launches around a call
    products, convolution, attention, recurrent     matrix products
    streaming       one pass over memory
    copies          what moves memory: reshapes, paddings, concatenations, updates in place
    trained         what a forward pass launches in another way for gradients
    backward        gradients, and what autograd keeps for them
    optimizers      the update of parameters

To add a rule: a function (run, call) → None that emits kernels, in the file of its kind or in its
own; `launch` names it. Any change of a kernel raises `KERNEL_VERSION`.
"""

from dippm.estimate.features.kernels.backward.training import TrainingStep, training_step
from dippm.estimate.features.kernels.launch import (
    KERNEL_VERSION,
    launched,
    launched_by,
    sequence_of,
)

__all__ = [
    "KERNEL_VERSION",
    "TrainingStep",
    "launched",
    "launched_by",
    "sequence_of",
    "training_step",
]
