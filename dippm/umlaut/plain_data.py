"""Conversion of numbers, arrays and tensors to JSON data, and a limit on data from files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

MOST_VALUES = 20_000_000
"""Most values in a file: ten metrics, ten times a second, for two days."""
VALUES_PER_BYTE, LEAST_VALUES = 4, 1000
"""A number or reference takes a byte or more; only shared data expands to more values."""
CHARACTERS_PER_VALUE = 32
DEEPEST = 64


def plain(data: Any) -> Any:
    """Return numbers, arrays, tensors, frames and sequences as JSON data.

    Numbers that are not finite become None, since JSON has none.
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
    """The number of values that may still be read from a file, counting shared ones repeatedly.

    Attributes:
        left: number of values.
    """

    def __init__(self, values: int = MOST_VALUES) -> None:
        self.left = values

    def plain(self, data: Any, size: int) -> Any:
        """Return data of `json` or `pickled` expanded, with None for numbers that are not finite.

        Args:
            data: lists, tuples, dictionaries, texts and numbers, or objects created by `pickled`.
            size: size of its encoding in bytes.

        Raises:
            ValueError: if it expands to more values than are left, or than its size explains; if it
                is deeper than `DEEPEST`; or if something in it is not a plain value.
        """
        most = min(self.left, VALUES_PER_BYTE * size + LEAST_VALUES)
        counted = Allowance(most)
        try:
            return counted._unfolded(data, DEEPEST)
        finally:
            self.left -= most - max(counted.left, 0)

    def check(self, values: int) -> None:
        """Refuse more values than are left.

        Raises:
            ValueError: if there are more.
        """
        if values > self.left:
            raise ValueError("the file has more values than can be read")

    def spend(self, values: int) -> None:
        """Subtract values.

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
