"""Objects of a JSON document, wherever they stand: what a check of a stranger's file looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def objects_in(document: Any) -> Iterator[dict[str, Any]]:
    """Yield each object of a document, however deep; one is entered once the next is asked for.

    So what was taken out of an object meanwhile is not entered.
    """
    stack = [document]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
