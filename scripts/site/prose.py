"""What a page says outside of its code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def replaced(text: str, pattern: re.Pattern[str], new: Callable[[re.Match[str]], str]) -> str:
    """Return Markdown in which matches of a pattern are replaced, those in code left alone."""
    parts = CODE.split(text)
    return "".join(
        part if place % 2 else pattern.sub(new, part) for place, part in enumerate(parts)
    )


def found(text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern in Markdown, those in code left out."""
    for part in CODE.split(text)[::2]:
        yield from pattern.finditer(part)
