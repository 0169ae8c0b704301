"""Batch sizes and other numbers of a sweep, from text: lists, powers of two, steps."""

from __future__ import annotations

import re

from dippm.base.written import whole_number
from dippm.errors import ConditionsError

MOST = 10_000
HINT = "Give 8, a list 1,8,32, powers of two 1:1024, or steps 8:128:8."


def batches_of(text: str) -> tuple[int, ...]:
    """Return the batch sizes that a text asks for, each once, in its order.

    "1,8,32" is a list; "1:1024" is the powers of two between and both ends; "8:128:8" goes in
    steps; parts of a list may be ranges.

    Raises:
        ConditionsError: if it is none of these, or asks for more than `MOST`.
    """
    found: list[int] = []
    for part in filter(None, re.split(r"[,;\s]+", text.strip())):
        try:
            numbers = [whole_number(number) for number in part.split(":")]
        except ValueError:
            raise ConditionsError(f"batch is {text!r}", HINT) from None
        found += _range(numbers, text)
    if not found:
        raise ConditionsError(f"batch is {text!r}", HINT)
    return tuple(dict.fromkeys(found))


def _range(numbers: list[int], text: str) -> list[int]:
    if len(numbers) == 1:
        return numbers
    first, last, *steps = numbers
    if len(steps) > 1 or first < 1 or last < first or any(step < 1 for step in steps):
        raise ConditionsError(f"batch is {text!r}", HINT)
    if not steps:
        powers = (1 << exponent for exponent in range(first.bit_length() - 1, last.bit_length()))
        return [
            first,
            *(power for power in powers if first < power < last),
            *[last][: last - first],
        ]
    if (last - first) // steps[0] >= MOST:
        raise ConditionsError(f"batch {text!r} asks for more than {MOST:,} sizes", HINT)
    return list(range(first, last + 1, steps[0]))
