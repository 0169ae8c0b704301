"""The Pareto front of two quantities that should both be small."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return which points no other one beats, by rising first quantity.

    A point beats another if it is no larger in both quantities and smaller in one; so of equal
    points none beats the other.
    """
    kept: list[int] = []
    least = float("inf")
    for i in sorted(range(len(points)), key=points.__getitem__):
        if points[i][1] < least or (kept and points[i] == points[kept[-1]]):
            kept.append(i)
            least = points[i][1]
    return kept
