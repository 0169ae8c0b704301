"""Sizes at another batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache


def rebinding(old: int, new: int) -> Callable[[int], int]:
    """Return the function that replaces the factor `old` of a size by `new`.

    Every size has the factor 1, so nothing is told apart by it, and sizes stay.
    """
    if old in (1, new):
        return lambda n: n

    @cache
    def size(n: int) -> int:
        factor = 1
        while n and n % old == 0:
            n //= old
            factor *= new
        return n * factor

    return size
