"""The nested objects of a JSON document, for checks of untrusted files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


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
