"""Raw graphs as files: gzipped JSON, read with a size limit."""

from __future__ import annotations

import gzip
import zlib

MAX_TEXT_BYTES = 1 << 29
"""Size limit: a graph of a million operators takes about 2²⁸ bytes; more is a gzip bomb."""


def pack(text: str) -> bytes:
    """Return text as the bytes of a gzip file."""
    return gzip.compress(text.encode(), compresslevel=1)


def unpack(data: bytes) -> bytes:
    """Return the text of a gzip file, as bytes.

    Raises:
        ValueError: if the data is damaged, or the text exceeds `MAX_TEXT_BYTES`.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        text = stream.decompress(data, MAX_TEXT_BYTES)
    except zlib.error as error:
        raise ValueError(f"not gzip, or damaged: {error}") from None
    if not stream.eof:
        raise ValueError("cut short, or larger than a graph can be")
    return text
