"""What is done to a file: bytes, numbers, nesting, keys; the same seed does the same."""

from __future__ import annotations

import json
import random
import re

NUMBERS = [b"-1", b"0", b"1e308", b"-1e-320", b"9" * 30, b"9" * 5000, b"NaN", b"Infinity", b"1_0"]
NUMBERS += [b"9223372036854775808", b"true", b"null", b'""', b"[]", b"{}", b'"\\ud800"', b"0.5"]
NUMBERS += ["٣".encode(), b"1" + b"0" * 400, b"-9223372036854775808", b'"x"', b"1e5", b"[[[]]]"]
DEEP = [b"[" * 5000, b'{"a":' * 3000, b"[" * 900 + b"]" * 900, b"{a=" * 900, b"(" * 900]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WORD = re.compile(rb'"[^"\n]{0,80}"|\b[A-Za-z_]\w{0,40}\b')


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Return a content with a few things in it changed."""
    data = content
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        data = chance.choice(KINDS)(data, chance)
    return data[: 4 << 20]


def _spot(data: bytes, chance: random.Random) -> int:
    return chance.randrange(len(data) + 1)


def _flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, chance: random.Random) -> bytes:
    at, new = _spot(data, chance), chance.randbytes(chance.choice((1, 2, 4, 8)))
    new = chance.choice((new, b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff", new))
    return data[:at] + new + data[at + len(new) :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: _spot(data, chance)]


def _leave_out(data: bytes, chance: random.Random) -> bytes:
    at = _spot(data, chance)
    return data[:at] + data[at + chance.choice((1, 4, 64, 1024)) :]


def _again(data: bytes, chance: random.Random) -> bytes:
    at = _spot(data, chance)
    part = data[at : at + chance.choice((1, 8, 100, 4096))]
    return data[:at] + part * chance.choice((2, 2, 50)) + data[at + len(part) :]


def _number(data: bytes, chance: random.Random) -> bytes:
    return _replaced(_NUMBER, data, chance)


def _word(data: bytes, chance: random.Random) -> bytes:
    return _replaced(_WORD, data, chance)


def _replaced(pattern: re.Pattern[bytes], data: bytes, chance: random.Random) -> bytes:
    found = list(pattern.finditer(data[:200_000]))
    if not found:
        return _flip(data, chance)
    old, other = chance.choice(found), chance.choice(found)
    new = chance.choice((*NUMBERS, *DEEP[:2], b"x" * 200_000, other.group(), other.group()))
    return data[: old.start()] + new + data[old.end() :]


def _deep(data: bytes, chance: random.Random) -> bytes:
    at = _spot(data, chance)
    return data[:at] + chance.choice(DEEP) + data[at:]


def _part(data: bytes, chance: random.Random) -> bytes:
    """Change a part of a JSON document by another type, twice the same key or a missing one."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _number(data, chance)
    places: list[tuple[list[object] | dict[str, object], object]] = []
    stack = [document]
    while stack and len(places) < 5000:
        item = stack.pop()
        if isinstance(item, dict | list):
            keys = item if isinstance(item, dict) else range(len(item))
            places += [(item, key) for key in keys]
            stack += item.values() if isinstance(item, dict) else item
    if not places:
        return _number(data, chance)
    holder, key = chance.choice(places)
    odd = [None, -1, 0, 1 << 70, 1e308, True, "", [], {}, "x" * 9, [[1]], {"a": 1}, 0.5, "\ud800"]
    if chance.random() < 0.2:
        del holder[key]  # type: ignore[arg-type]
    else:
        holder[key] = chance.choice(odd)  # type: ignore[index]
    text = json.dumps(document)
    if chance.random() < 0.1 and text.startswith("{"):
        text = '{"version": 7, ' + text[1:]
    return text.encode()


KINDS = (
    _flip,
    _overwrite,
    _overwrite,
    _cut,
    _leave_out,
    _again,
    _number,
    _word,
    _deep,
    _part,
    _part,
)
