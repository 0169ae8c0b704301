"""Parses numbers and tables that people write: on the command line, in CSV files, as sizes.

Python's `int` and `float` accept more than people mean: "1_0" is ten there, and so is a ten in the
digits of another script.
"""

from __future__ import annotations

import csv
import io
from math import isfinite

MOST_DIGITS = 18
"""Largest number of digits: integers below 10^18 fit into 64 bits."""


def whole_number(text: str) -> int:
    """Parse an integer.

    Raises:
        ValueError: if the text is not an integer, or has more than MOST_DIGITS digits.
    """
    plain = text.strip()
    digits = plain[1:] if plain[:1] in ("+", "-") else plain
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{text!r} is not a whole number")
    if len(digits.lstrip("0")) > MOST_DIGITS:
        raise ValueError(f"{text!r} has more than {MOST_DIGITS} digits")
    return int(plain)


def decimal_number(text: str) -> float:
    """Parse a number, also "1e-3", "inf" and "nan".

    Raises:
        ValueError: if the text is not a number.
    """
    plain = text.strip()
    if not plain.isascii() or "_" in plain:
        raise ValueError(f"{text!r} is not a number")
    return float(plain)


def is_finite(value: object) -> bool:
    """Return whether a value is a finite number in the range of float, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False


def csv_rows(text: str, delimiter: str = ",") -> list[list[str]]:
    """Return the rows of comma-separated text.

    Raises:
        ValueError: if the text cannot be parsed, for instance if a quoted cell never ends.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        return list(reader)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
