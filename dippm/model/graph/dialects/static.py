"""R1: whatever depends only on parameters and constants is no part of the graph.

It happens while reading, because weights must be told from activations before anything else.
What an eager framework computes from parameters on every pass (a relative position bias, a
standardised weight) is remembered on the value that results.
"""

from __future__ import annotations

from dippm.model.graph.dialects.call import Call
from dippm.model.graph.dialects.names import IDENTITIES, canonical_name, fold
from dippm.model.graph.operators import operator

_FREE_NAMES = """
    reshape view unsafeview flatten unflatten squeeze unsqueeze expanddims broadcastto expand
    permutedims transpose permute swapaxes split slice stridedslice select take narrow unbind
    cast astype to tocopy copy shapeof shapetotensor tensortoshape
"""
_FREE = frozenset(_FREE_NAMES.split())


def fold_static(call: Call) -> bool:
    """Mark the results of a call static if all its arguments are; return whether they are."""
    if not all(value.is_static for value in call.inputs):
        return False
    roots = frozenset(root for value in call.inputs for root in value.roots)
    work = tuple(dict.fromkeys(w for value in call.inputs for w in value.static_work))
    name = _work(call.name)
    for out in call.outputs:
        out.is_static = True
        out.roots = roots
        out.static_work = (*work, name) if name else work
    only = call.inputs[0] if len(call.inputs) == 1 else None
    if only is not None and only.scalar is not None and not name and call.outputs[0].size == 1:
        call.outputs[0].scalar = only.scalar
    return True


def _work(raw_name: str) -> str:
    """Return the canonical name of the kernel that a static operator launches, "" if none."""
    dialect, bare = fold(raw_name)
    if bare in _FREE or bare in IDENTITIES:
        return ""
    name = canonical_name(dialect, bare) or bare
    return "" if operator(name).category == "view" else name
