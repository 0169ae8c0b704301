"""Conversion of names and texts to what MLflow accepts; the run's record has the originals."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

_FORBIDDEN = re.compile(r"[^\w.\- :/]", re.ASCII)
LONGEST_KEY, LONGEST_PARAM, LONGEST_TAG = 250, 6000, 5000


def key(name: str) -> str:
    """Return a valid key of MLflow for a name."""
    plain = _FORBIDDEN.sub("_", name).strip("/. ")[:LONGEST_KEY] or "_"
    return re.sub(r"//+", "/", re.sub(r"\.\.+", "_", plain)).replace("/./", "/_/")


def keys(names: Iterable[str]) -> dict[str, str]:
    """Return a unique key for each name."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    counts: dict[str, int] = {}
    for name in names:
        plain = wanted = key(name)
        while plain in taken:
            counts[wanted] = counts.get(wanted, 1) + 1
            plain = f"{wanted[: LONGEST_KEY - 8]}_{counts[wanted]}"
        taken.add(plain)
        found[name] = plain
    return found


def experiment_folder(name: str) -> str:
    """Return a unique folder name for an experiment."""
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in name)[:40]
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def text(value: object, longest: int) -> str:
    """Return text that every database accepts: no NUL, no lone surrogates."""
    plain = str(value).replace("\0", "\ufffd").encode(errors="replace").decode()
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def texts(values: Mapping[str, object], longest: int) -> dict[str, str]:
    """Return such texts with such keys."""
    named = keys(values)
    return {named[name]: text(value, longest) for name, value in values.items()}
