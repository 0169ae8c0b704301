"""The text of a page outside of its code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def replace_in_prose(
    text: str, pattern: re.Pattern[str], new: Callable[[re.Match[str]], str]
) -> str:
    """Return Markdown with replaced matches of a pattern, except in code."""
    parts = CODE.split(text)
    return "".join(
        part if place % 2 else pattern.sub(new, part) for place, part in enumerate(parts)
    )


def find_in_prose(text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern in Markdown, except in code."""
    for part in CODE.split(text)[::2]:
        yield from pattern.finditer(part)
