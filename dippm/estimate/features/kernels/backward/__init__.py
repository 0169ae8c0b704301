"""The kernels of a training step: what autograd launches for the calls of a model, in reverse.

    training        the way in: forward, loss, gradients, optimiser; and what autograd keeps
    tape            what the forward pass did: states, memory, which gradients are needed
    gradients       a backward pass: gradients as tensors, sums of them, casts back
    checkpointing   what stays alive where blocks are run again
    products, convolution, attention, norms, elementwise, movement, recurrent: gradients by kind

A rule is a function (gradients, step, gradient) → None; `training` names it. The forward rules
launch what it asks for, so copies and layouts are those of any call.
"""
