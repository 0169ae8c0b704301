"""Frames of JSON text: a length of eight bytes, then the text. Nothing is ever unpickled."""

from __future__ import annotations

import json
import os
import struct
from typing import IO, Any

Message = dict[str, Any]

HEADER = struct.Struct("<Q")


def own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return a worker's requests and answers.

    From here on stdin is empty, and what is printed goes to stderr.
    """
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def write_frame(stream: IO[bytes], message: Message) -> None:
    """Write a message to a blocking stream."""
    rest = memoryview(frame(message))
    while rest:
        rest = rest[stream.write(rest) :]


def read_frame(stream: IO[bytes]) -> Message:
    """Read a message from a blocking stream.

    Raises:
        EOFError: if it was closed.
    """
    (size,) = HEADER.unpack(_exactly(stream, HEADER.size))
    message: Message = json.loads(_exactly(stream, size))
    return message


def frame(message: Message) -> bytes:
    """Return the bytes of a message."""
    data = json.dumps(message).encode()
    return HEADER.pack(len(data)) + data


def _exactly(stream: IO[bytes], size: int) -> bytes:
    chunks: list[bytes] = []
    while size:
        chunk = stream.read(min(size, 1 << 20))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
