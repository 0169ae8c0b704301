"""Comparison of a command's output with a page: words exactly, figures approximately."""

from __future__ import annotations

import re

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
VERSION = re.compile(r"\d+\.\d+\.\d+")
DRAWN = re.compile(r"[─-▟]+")
ELISION = "..."
TOLERANCE = 0.1
"""Relative tolerance of figures, because a new checkpoint changes the last digits."""


def difference(said: str, printed: str) -> str | None:
    """Return the first line that differs, in both versions; None if none does.

    Spaces, rulers and bars are ignored. All versions are equal. A line ELISION of the page stands
    for any number of output lines.
    """
    *parts, last = _parts(_lines(said))
    right = _lines(printed)
    for number, part in enumerate(parts):
        starts = range(len(right) + 1) if number else (0,)
        found = [_apart(part, right[start:]) for start in starts]
        matching = [start for start, apart in zip(starts, found, strict=True) if apart is None]
        if not matching:
            return max((apart for apart in found if apart is not None), key=lambda apart: apart[0])[
                1
            ]
        right = right[matching[0] + len(part) :]
    if parts:
        right = right[max(0, len(right) - len(last)) :]  # it ends like the page
    apart = _apart(last, right)
    if apart is not None:
        return apart[1]
    return f"the page lacks: {right[len(last)]}" if len(right) > len(last) else None


def _parts(lines: list[str]) -> list[list[str]]:
    """Return the lines between elisions."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == ELISION:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _apart(said: list[str], printed: list[str]) -> tuple[int, str] | None:
    """Return the number of matching lines and the first difference; None if all match.

    Lines of numbers match many others, so a part is located where all of its lines match.
    """
    for alike, line in enumerate(said):
        other = printed[alike] if alike < len(printed) else None
        if other is None or not _alike(line, other):
            return alike, f"the page says:  {line}\nit prints:      {other or '(nothing)'}"
    return None


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
