"""Formats numbers for people."""

from __future__ import annotations

from math import floor, log10


def show(value: float) -> str:
    """Format a number with four significant digits, or all its integer digits if more."""
    return f"{value:,.{decimals(value)}f}"


def between(low: float | None, high: float | None) -> str:
    """Format an interval; "" if it is absent."""
    return "" if low is None or high is None else f"{show(low)} – {show(high)}"


def decimals(value: float) -> int:
    """Return the number of decimals for four significant digits."""
    return max(0, 3 - floor(log10(abs(value)))) if value else 0
