"""The weights file of a checkpoint, looked at before it is read: 40 GB of nothing cost nothing.

A safetensors file is eight bytes with the length of its header, the header (JSON with the places of
all tensors), and the tensors, which end where the file ends.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from dippm.errors import CheckpointError
from dippm.estimate.pretrained import store

MAX_BYTES = 1 << 30
"""A hundred and sixty times the largest predictor that was ever shipped."""

MAX_HEADER_BYTES = 16 << 20
_LENGTH = struct.Struct("<Q")


@contextmanager
def open_weights(folder: Path) -> Iterator[BufferedReader]:
    """Yield the weights file of a checkpoint at its first byte, if its size can be right.

    Raises:
        CheckpointError: if the file is too large, or not as long as its own header says.
        OSError: if it cannot be read.
    """
    path = folder / store.WEIGHTS
    with path.open("rb") as file:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _damaged(path, f"{size:,} bytes, more than any predictor has")
        if _said(file) != size:
            raise _damaged(path, "its length is not the one that its header says")
        file.seek(0)
        yield file


def _said(file: BufferedReader) -> int | None:
    """Return the size of the file that its header says; None if there is no such header."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if not 2 <= length <= MAX_HEADER_BYTES:
        return None
    try:
        tensors: Any = json.loads(file.read(length))
        ends = [t["data_offsets"][1] for name, t in tensors.items() if name != "__metadata__"]
        return _LENGTH.size + int(length) + max(map(int, ends), default=0)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a file of weights: {what}", "Restore the folder from its release."
    )
