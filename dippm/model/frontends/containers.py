"""What an untrusted container holds: the members of a zip archive, the objects of a JSON document.

Names of members are read from the archive's directory without an object per member: `zipfile` needs
60 µs and 800 bytes per member, before it is known whether the file is a model.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from dippm.base import files
from dippm.errors import ModelFileError

MAGIC = b"PK\x03\x04"
MAX_DIRECTORY_BYTES = 64 << 20
"""Limit for about 800,000 members; the largest model files have some ten thousand."""

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")
_UTF8 = 0x800


def member_names(path: Path) -> Iterator[str]:
    """Yield the names of all members.

    Raises:
        BadZipFile: if the file is damaged or not an archive.
        ModelFileError: if it has more members than any model.
    """
    directory = _directory(path)
    position = 0
    while position < len(directory):
        if len(directory) - position < _ENTRY.size:
            raise BadZipFile("the list of members is cut short")
        entry = _ENTRY.unpack_from(directory, position)
        if entry[0] != b"PK\x01\x02":
            raise BadZipFile("the list of members is damaged")
        flags, (name, extra, comment) = entry[5], entry[12:15]
        position += _ENTRY.size
        text = directory[position : position + name]
        yield text.decode("utf-8" if flags & _UTF8 else "cp437", errors="replace")
        position += name + extra + comment


def is_broken(path: Path) -> bool:
    """Return whether a file begins as a zip archive but lacks the end of one."""
    if files.beginning(path, len(MAGIC)) != MAGIC:
        return False
    try:
        _directory(path)
    except BadZipFile:
        return True
    return False


def _directory(path: Path) -> bytes:
    with files.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size - (1 << 16) - _END.size)
        file.seek(start)
        tail = file.read(size - start)
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or len(tail) - at < _END.size:
            raise BadZipFile("it has no list of members")
        length, end = _END.unpack_from(tail, at)[5], start + at
        locator = at - _LOCATOR.size
        if locator >= 0 and tail[locator : locator + 4] == b"PK\x06\x07":
            if _LOCATOR.unpack_from(tail, locator)[3] > 1:
                raise BadZipFile("it claims to span several disks")
            end = start + locator - _END_64.size
            file.seek(max(0, end))
            record = file.read(_END_64.size)
            if len(record) < _END_64.size or record[:4] != b"PK\x06\x06":
                raise BadZipFile("its end is damaged")
            length = _END_64.unpack(record)[8]
        if length > MAX_DIRECTORY_BYTES:
            raise ModelFileError(
                f"{files.shown(path.name)}: an archive whose list of members takes "
                f"{length >> 20:,} MB is not a model",
                "Check what the file is; models have some thousand members.",
            )
        if length > end:
            raise BadZipFile("its list of members would begin before the file")
        file.seek(end - length)
        return file.read(length)


def objects_in(document: Any) -> Iterator[dict[str, Any]]:
    """Yield each object of a document at any depth; enter it only when the next is requested.

    So the caller can remove parts of an object before they are entered.
    """
    stack = [document]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
