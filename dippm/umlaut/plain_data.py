"""Numbers, arrays and tensors as what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


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
