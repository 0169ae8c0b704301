"""Numbers and tables that people wrote: of the command line, of CSV files, of sizes in a text.

Python's `int` and `float` take more than people mean: "1_0" is ten there, and so is a ten of
another script's digits.
"""

from __future__ import annotations

import csv
import io
from math import isfinite

MOST_DIGITS = 18
"""Whole numbers below 10^18, which 64 bits hold."""


def whole_number(text: str) -> int:
    """Return the whole number that a text spells.

    Raises:
        ValueError: if it is none, or one of more digits than 64 bits hold.
    """
    plain = text.strip()
    digits = plain[1:] if plain[:1] in ("+", "-") else plain
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{text!r} is not a whole number")
    if len(digits.lstrip("0")) > MOST_DIGITS:
        raise ValueError(f"{text!r} has more than {MOST_DIGITS} digits")
    return int(plain)


def decimal_number(text: str) -> float:
    """Return the number that a text spells, also "1e-3", "inf" and "nan".

    Raises:
        ValueError: if it is none.
    """
    plain = text.strip()
    if not plain.isascii() or "_" in plain:
        raise ValueError(f"{text!r} is not a number")
    return float(plain)


def is_finite(value: object) -> bool:
    """Tell whether a value is a number that a float holds: no bool, no infinity, not 10^400."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False


def csv_rows(text: str, delimiter: str = ",") -> list[list[str]]:
    """Return the rows of comma-separated text.

    Raises:
        ValueError: if the text cannot be taken apart, for instance at a cell that never ends.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        return list(reader)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
