"""Writes YAML: mappings, lists, strings and numbers, which suffice for manifests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
"""Plain scalars that YAML 1.1 does not read as strings."""


def yaml_text(documents: Iterable[Mapping[str, Any]], comments: Iterable[str] = ()) -> str:
    """Return documents as one file, with comments at its head."""
    head = "".join(f"# {comment}\n" for comment in comments)
    return head + "---\n".join("\n".join(_lines(document)) + "\n" for document in documents)


def _lines(node: Any, indent: str = "") -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if isinstance(value, Mapping | list) and value:
                yield f"{indent}{_scalar(key)}:"
                yield from _lines(value, indent + "  ")
            else:
                yield f"{indent}{_scalar(key)}: {_scalar(value)}"
        return
    for item in node:
        inner = list(_lines(item, indent + "  ")) if isinstance(item, Mapping) else []
        if inner:
            yield f"{indent}- {inner[0].lstrip()}"
            yield from inner[1:]
        else:
            yield f"{indent}- {_scalar(item)}"


def _scalar(value: Any) -> str:
    """Return a scalar as YAML: JSON, without quotes where none are needed."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.casefold() not in _WORDS:
        return value
    # JSON escapes a character beyond U+FFFF as two surrogates, which YAML does not read as one.
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
