"""Numbers, arrays and tensors as what JSON can hold, and a limit of what was read from a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

MOST_VALUES = 20_000_000
"""Values that a file may unfold to: ten metrics, ten times a second, for two days."""
VALUES_PER_BYTE, LEAST_VALUES = 4, 1000
"""A number or a reference takes a byte or more; only what is shared unfolds to more."""
CHARACTERS_PER_VALUE = 32
DEEPEST = 64


def plain(data: Any) -> Any:
    """Return numbers, arrays, tensors, frames and sequences as what JSON can hold.

    Numbers that are no finite ones become None: JSON has none of them.
    """
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple | set | frozenset | range):
        return [plain(value) for value in data]
    for method in ("tolist", "to_numpy", "numpy", "isoformat"):
        convert = getattr(data, method, None)
        if callable(convert):
            return plain(convert())
    if isinstance(data, Iterable):
        return [plain(value) for value in data]
    return str(data)


class Allowance:
    """How many values may still be taken from a file; shared ones count each time they appear.

    Attributes:
        left: values.
    """

    def __init__(self, values: int = MOST_VALUES) -> None:
        self.left = values

    def plain(self, data: Any, size: int) -> Any:
        """Return data of `json` or of `pickled` unfolded, numbers that are not finite as None.

        Args:
            data: lists, tuples, dictionaries, texts and numbers, or what `pickled` made.
            size: bytes that it was written in.

        Raises:
            ValueError: if it unfolds to more than is left, or than its size explains, if it is
                deeper than `DEEPEST`, or if something in it is no plain value.
        """
        most = min(self.left, VALUES_PER_BYTE * size + LEAST_VALUES)
        counted = Allowance(most)
        try:
            return counted._unfolded(data, DEEPEST)
        finally:
            self.left -= most - max(counted.left, 0)

    def check(self, values: int) -> None:
        """Refuse what would be more values than are left.

        Raises:
            ValueError: if it would.
        """
        if values > self.left:
            raise ValueError("the file has more values than can be read")

    def spend(self, values: int) -> None:
        """Take values off.

        Raises:
            ValueError: if fewer are left.
        """
        self.left -= values
        if self.left < 0:
            raise ValueError("it unfolds to more values than can be")

    def _unfolded(self, data: Any, depth: int) -> Any:
        self.spend(1)
        if data is None or isinstance(data, bool):
            return data
        if isinstance(data, float):
            return data if math.isfinite(data) else None
        if isinstance(data, int):
            float(data)  # raises OverflowError: no measured number is as large
            return data
        if isinstance(data, str):
            self.spend(len(data) // CHARACTERS_PER_VALUE)
            return data if data.isascii() else data.encode(errors="backslashreplace").decode()
        if depth == 0:
            raise ValueError(f"it is deeper than {DEEPEST} levels")
        if isinstance(data, dict):
            return {
                self._unfolded(key, depth - 1): self._unfolded(value, depth - 1)
                for key, value in data.items()
            }
        if isinstance(data, list | tuple):
            return [self._unfolded(value, depth - 1) for value in data]
        if not hasattr(data, "nested"):
            raise ValueError("it holds what is no plain value")
        return self._unfolded(data.nested, depth - 1)
