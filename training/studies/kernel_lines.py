"""Two lists of kernels side by side: lines, sums by class, and classes that differ in a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log

MATTERS, OFF = 0.02, 0.2
"""Least share of a model's bytes at which a class counts, and ratio from which it differs."""


@dataclass(frozen=True, slots=True)
class Line:
    """A kernel of either list.

    Attributes:
        kind: kernel class; casts of parameters are "cast (weights)".
        launches: number of kernels.
        read_bytes, write_bytes: bytes read and written, weights included.
        text: further text to show.
    """

    kind: str
    launches: float
    read_bytes: float
    write_bytes: float
    text: str

    @property
    def bytes(self) -> float:
        """Bytes moved."""
        return self.read_bytes + self.write_bytes


Totals = Mapping[str, tuple[float, float]]
"""Kernels and bytes by class."""
Pair = tuple[Totals, Totals]
"""Our totals, and those that they are compared with."""


def sizes_of(shape: Iterable[int]) -> str:
    """Return a shape as text, "4x64x7x7"."""
    return "x".join(map(str, shape))


def totals(lines: Iterable[Line]) -> Totals:
    """Return kernels and bytes by class."""
    sums: dict[str, tuple[float, float]] = {}
    for line in lines:
        count, moved = sums.get(line.kind, (0.0, 0.0))
        sums[line.kind] = count + line.launches, moved + line.bytes
    return sums


def sum_all(sums: Totals) -> tuple[float, float]:
    """Return kernels and bytes of all classes."""
    return summed(sums.values())


def summed(values: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the sums of pairs."""
    held = list(values)
    return sum(v[0] for v in held), sum(v[1] for v in held)


def distance(pair: Pair) -> float:
    """Return the difference of the bytes of two lists as |log ratio|."""
    ours, theirs = (sum_all(side)[1] for side in pair)
    return abs(log(ours / theirs))


def is_off(kind: str, pair: Pair) -> bool:
    """Return whether a class counts in a model and its bytes differ much."""
    a, b = (side.get(kind, (0.0, 0.0))[1] for side in pair)
    return max(a, b) > MATTERS * sum_all(pair[1])[1] and abs(log((a + 1) / (b + 1))) > OFF


def gaps(pair: Pair) -> dict[str, float]:
    """Return the excess of our bytes by class as shares of all bytes, the largest first."""
    ours, theirs = pair
    total = sum_all(theirs)[1]
    found = {
        kind: (ours.get(kind, (0, 0.0))[1] - theirs.get(kind, (0, 0.0))[1]) / total
        for kind in {**ours, **theirs}
    }
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))


def side_by_side(ours: list[Line], theirs: list[Line]) -> list[str]:
    """Return both lists in execution order, classes aligned as far as they agree."""
    from difflib import SequenceMatcher

    rows = []
    matcher = SequenceMatcher(
        None, [a.kind for a in ours], [b.kind for b in theirs], autojunk=False
    )
    for _, a0, a1, b0, b1 in matcher.get_opcodes():
        for k in range(max(a1 - a0, b1 - b0)):
            a = ours[a0 + k] if a0 + k < a1 else None
            b = theirs[b0 + k] if b0 + k < b1 else None
            same = a and b and a.kind == b.kind
            near = same and abs(a.bytes - b.bytes) <= 0.05 * b.bytes  # type: ignore[union-attr]
            mark = " " if near else ("~" if same else "!")
            rows.append(f"{mark} {_shown(a):<78} | {_shown(b)}")
    return rows


def _shown(line: Line | None) -> str:
    if line is None:
        return ""
    sizes = f"{line.read_bytes / 1e6:9.3f} {line.write_bytes / 1e6:9.3f}"
    return f"{line.kind[:14]:<14} {sizes} {line.text}"[:78]
