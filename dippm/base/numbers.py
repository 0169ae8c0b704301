"""Numbers as people read them."""

from __future__ import annotations

from math import floor, log10


def show(value: float) -> str:
    """Return a number with four significant digits (at least all of its whole ones)."""
    return f"{value:,.{decimals(value)}f}"


def between(low: float | None, high: float | None) -> str:
    """Return an interval as text; "" where there is none."""
    return "" if low is None or high is None else f"{show(low)} – {show(high)}"


def decimals(value: float) -> int:
    """Return how many decimals four significant digits leave."""
    return max(0, 3 - floor(log10(abs(value)))) if value else 0
