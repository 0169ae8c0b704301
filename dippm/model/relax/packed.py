"""Raw graphs as files: gzipped JSON, read back within bounds."""

from __future__ import annotations

import gzip
import zlib

MAX_TEXT_BYTES = 1 << 29
"""A graph of a million operators takes about 2²⁸ bytes of JSON; more is a bomb, not a model."""


def pack(text: str) -> bytes:
    """Return text as a gzip file."""
    return gzip.compress(text.encode(), compresslevel=1)


def unpack(data: bytes) -> bytes:
    """Return what `pack` was given.

    Raises:
        ValueError: if the data is damaged, or would become larger than `MAX_TEXT_BYTES`.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        text = stream.decompress(data, MAX_TEXT_BYTES)
    except zlib.error as error:
        raise ValueError(f"not gzip, or damaged: {error}") from None
    if not stream.eof:
        raise ValueError("cut short, or larger than a graph can be")
    return text
