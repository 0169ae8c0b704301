"""How long the code of a model holds each result, in steps of the program that ran it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

STEP, UNTIL = "dippm_step", "dippm_held_until"
"""Keys of what is known of an operator: when it ran, and when nothing held its result any more."""

Held = tuple[int, int]
"""(STEP, UNTIL) of a result."""


def joined(known: Held | None, held: Held) -> Held:
    """Return how long a result is held that goes by several names: views, parts, aliases."""
    return (min(known[0], held[0]), max(known[1], held[1])) if known else held


def held_until(held: Sequence[Held | None]) -> list[int | None]:
    """Return the last operator during which each result is held; None if that is not known.

    Args:
        held: of each operator in execution order; None of those that are not known, which ran with
            the next one that is.
    """
    steps, following = [0] * len(held), max((h[0] for h in held if h), default=0)
    for i in range(len(held) - 1, -1, -1):
        known = held[i]
        following = min(following, known[0]) if known else following
        steps[i] = following
    return [
        max(i, bisect_right(steps, known[1]) - 1) if known else None for i, known in enumerate(held)
    ]
