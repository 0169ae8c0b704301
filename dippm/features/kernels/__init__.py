"""The kernels that a model launches: operators expanded for a precision and an execution mode.

A latency is spent by kernels, not by operators: an eager framework launches a batch norm that an
exporter would have folded, casts what autocast feeds to a tensor core, and copies a permuted view
before it reshapes it. Views cost nothing and launch nothing.

    launch          the way in, and which rule expands which operator
    expansion       what a rule may ask of the run and of the operators before
    convolution, products, attention, recurrent     matrix products, one rule each
    integers        products of 8-bit integers
    streaming       one pass over memory; views and their copies
    casts           what autocast launches around an operator
    folded          operators that a canonical rule folded into another one
    sizes           what rules read of a node

To add a rule: a function (expansion, position, node) → kernels in the file of its kind, or in its
own; `launch` names it. Any change of a kernel raises `KERNEL_VERSION`.
"""

from dippm.features.kernels.launch import KERNEL_VERSION, launched

__all__ = ["KERNEL_VERSION", "launched"]
