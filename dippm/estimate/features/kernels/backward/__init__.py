"""The kernels of a training step: what autograd launches for the calls of a model, in reverse.

    training        the way in: forward, loss, gradients, optimiser; and what autograd keeps
    gradients       a backward pass: gradients as tensors, sums of them, casts back; and the tape of
                    what the forward pass did: states, memory, which gradients are needed; what
                    stays alive where blocks are run again
    arithmetic      gradients of products, norms and element-wise calls
    movement        gradients of what moves memory

A rule is a function (gradients, step, gradient) → None; `training` names it. The forward rules
launch what it asks for, so copies and layouts are those of any call.
"""
