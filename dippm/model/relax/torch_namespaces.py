"""Operator namespaces of torch, as opposed to those of other libraries."""

from __future__ import annotations

import torch

OWN = frozenset(
    {"aten", "dippm", "higher_order", "inductor", "prim", "prims", "quantized", "torchvision"}
)
"""Namespaces with operators of known meaning; "dippm" contains our own."""


def is_foreign(target: object) -> bool:
    """Return whether the target of a call is an operator of another library."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in OWN
