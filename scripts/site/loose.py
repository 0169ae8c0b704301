"""Whether what a command prints is what a page says it prints: words exactly, figures about."""

from __future__ import annotations

import re

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
VERSION = re.compile(r"\d+\.\d+\.\d+")
DRAWN = re.compile(r"[─-▟]+")
ELISION = "..."
TOLERANCE = 0.1
"""Relative. A figure on a page is there for its size; a new checkpoint moves the last digits."""


def difference(said: str, printed: str) -> str | None:
    """Return the first line that differs, both ways; None if none does.

    Spaces, rulers and bars do not count. Versions are equal to each other. A line ELISION of
    the page stands for any number of printed lines.
    """
    left, right = _lines(said), _lines(printed)
    while left:
        line = left.pop(0)
        if line == ELISION:
            if not left:
                return None
            while right and not _alike(left[0], right[0]):
                right.pop(0)
            continue
        if not right or not _alike(line, right[0]):
            return f"the page says:  {line}\nit prints:      {right[0] if right else '(nothing)'}"
        right.pop(0)
    return f"the page lacks: {right[0]}" if right else None


def _lines(text: str) -> list[str]:
    lines = (" ".join(DRAWN.sub(" ", line).split()) for line in text.splitlines())
    return [line for line in lines if line]


def _alike(said: str, printed: str) -> bool:
    said, printed = VERSION.sub("#", said), VERSION.sub("#", printed)
    if NUMBER.sub("#", said) != NUMBER.sub("#", printed):
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True)
    return all(_close(_value(a), _value(b)) for a, b in pairs)


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
