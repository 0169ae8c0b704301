"""Which operators torch itself brings; what others mean by a name is theirs alone."""

from __future__ import annotations

import torch

OWN = frozenset(
    {"aten", "dippm", "higher_order", "inductor", "prim", "prims", "quantized", "torchvision"}
)
"""Namespaces whose names say what an operator computes; "dippm" holds our stand-ins."""


def is_foreign(target: object) -> bool:
    """Return whether the target of a call is an operator of another library."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in OWN
