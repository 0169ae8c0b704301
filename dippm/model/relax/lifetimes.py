"""Lifetimes: how long the code of a model refers to each result, in steps of the program."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

STEP, UNTIL = "dippm_step", "dippm_held_until"
"""Metadata keys of an operator: its step, and the step after which its result is unreferenced."""

Lifetime = tuple[int, int]
"""STEP and UNTIL of one result."""


def merge_lifetimes(known: Lifetime | None, held: Lifetime) -> Lifetime:
    """Return the union of two lifetimes, of names for the same memory: views, parts, aliases."""
    return (min(known[0], held[0]), max(known[1], held[1])) if known else held


def last_operators(held: Sequence[Lifetime | None]) -> list[int | None]:
    """Return the last operator during which each result is alive; None where that is unknown.

    Args:
        held: lifetime of each operator's result in execution order. None if unknown; such an
            operator counts as run together with the next one whose lifetime is known.
    """
    steps, following = [0] * len(held), max((h[0] for h in held if h), default=0)
    for i in range(len(held) - 1, -1, -1):
        known = held[i]
        following = min(following, known[0]) if known else following
        steps[i] = following
    return [
        max(i, bisect_right(steps, known[1]) - 1) if known else None for i, known in enumerate(held)
    ]
