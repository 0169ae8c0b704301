"""`printable`, `legible`, `json_text`, `csv_table`: outside text, safe where people look at it.

File names, operator names and texts of checkpoints can hold what a terminal obeys: escape
sequences, carriage returns, marks that turn the direction of writing. Attributes of errors and
answers keep the exact text, JSON spells it in its own escapes, and what people read is spelled out.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable
from typing import Any

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode that are shown as escapes: control and format characters (among them the
marks of direction), halves of surrogate pairs (bytes of a file name that are no text), and
separators of lines."""

LONGEST_WORD, LONGEST_MESSAGE = 300, 4000
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")

PLAIN = "dippm.plain"
_PLAIN = {"–": "-", "·": "|", "×": "x", "≤": "<=", "…": "...", "−": "-"}
_PLAIN |= dict.fromkeys("█▉▊▋▌", "#") | dict.fromkeys("▍▎▏", " ")


def printable(text: str, *, keep: str = "") -> str:
    r"""Return text with hidden characters spelled out, as in "\x1b".

    Args:
        text: anything.
        keep: characters that stay as they are, for instance a line feed.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or not _is_hidden(c) else _escape(c) for c in text)


def legible(text: str) -> str:
    """Return a message with words that nobody would write, and itself, cut in their middle.

    A name of 200,000 characters in it is shown by its beginning and its end.
    """
    if len(text) <= LONGEST_WORD:
        return text
    shorter = _LONG_WORD.sub(lambda word: _cut(word.group(), LONGEST_WORD), text)
    return _cut(shorter, LONGEST_MESSAGE)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 4
    left_out = len(text) - (most - end) - end
    return f"{text[: most - end]}...({left_out:,} characters)...{text[-end:]}"


def json_text(document: Any) -> str:
    """Return a document as JSON text that reads back exactly and hides nothing.

    Raises:
        ValueError: if a number is not finite.
    """
    import json

    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c == "\n" or not _is_hidden(c) else json.dumps(c)[1:-1] for c in text)


def csv_table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return comma-separated text with unrounded numbers.

    None and numbers that are not finite are empty cells; a text that a spreadsheet would run as a
    formula is led by a quote.
    """
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(item: Any) -> Any:
    if isinstance(item, float):
        return repr(item) if math.isfinite(item) else ""
    if isinstance(item, str) and item[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + item
    return item


def _is_hidden(char: str) -> bool:
    import unicodedata

    return unicodedata.category(char) in _HIDDEN


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _plainly(error: UnicodeError) -> tuple[str | bytes, int]:
    """Spell what a stream's encoding lacks, so that an ASCII terminal gets its table too."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_PLAIN.get(char) or _escape(char) for char in lost), error.end


codecs.register_error(PLAIN, _plainly)
