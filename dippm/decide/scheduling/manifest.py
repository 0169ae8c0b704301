"""Manifests of Kubernetes: YAML text, and valid names of objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dippm.errors import ConditionsError, shortened
from dippm.model.convert import source_name

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
"""Plain scalars that YAML 1.1 does not read as strings."""


def yaml_text(documents: Iterable[Mapping[str, Any]], comments: Iterable[str] = ()) -> str:
    """Return documents as one YAML file, with comments at its head."""
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


# Names of Kubernetes objects.

MOST = 50
"""Maximum length of a name; Kubernetes allows 63, and the pods of a job append a suffix."""
_NAME = re.compile(rf"[a-z]([-a-z0-9]{{0,{MOST - 2}}}[a-z0-9])?")


def object_name(given: str | None, model: str) -> str:
    """Return the given name, or else the model's name in valid characters.

    Raises:
        ConditionsError: if the given name is not valid.
    """
    if given is not None:
        if not _NAME.fullmatch(given):
            raise ConditionsError(
                f"{shortened(given)!r} is not the name of an object",
                f"Give small letters, digits and hyphens, {MOST} at most: name=resnet50.",
            )
        return given
    plain = re.sub(r"[^a-z0-9]+", "-", source_name(model).casefold().replace(":", "-"))
    return f"dippm-{plain}"[:MOST].strip("-")
