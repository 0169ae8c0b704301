"""`printable`, `legible`, `json_text`, `csv_table`: make untrusted text safe to show.

File names, operator names and texts of checkpoints can contain terminal controls: escape sequences,
carriage returns, bidirectional marks. Attributes of errors and answers keep the exact text, JSON
uses its own escapes, and text for people has such characters spelled out.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable
from typing import Any

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that are shown as escapes: control and format characters (including
bidirectional marks), surrogates (undecodable bytes of file names), and line separators."""

LONGEST_WORD, LONGEST_MESSAGE = 300, 4000
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")

PLAIN = "dippm.plain"
_PLAIN = {"–": "-", "·": "|", "×": "x", "≤": "<=", "…": "...", "−": "-"}
_PLAIN |= dict.fromkeys("█▉▊▋▌", "#") | dict.fromkeys("▍▎▏", " ")


def printable(text: str, *, keep: str = "") -> str:
    r"""Return text with hidden characters spelled out, as in "\x1b".

    Args:
        text: any text.
        keep: characters that are not escaped, for instance a line feed.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or not _is_hidden(c) else _escape(c) for c in text)


def legible(text: str) -> str:
    """Shorten overlong words of a message, and the message itself, in the middle.

    A name of 200,000 characters is shown by its start and its end.
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
    """Return a document as JSON text that reads back exactly and has no hidden characters.

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

    None and non-finite numbers are empty cells; a text that a spreadsheet would evaluate as a
    formula is prefixed with a quote.
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
    """Replace characters that a stream cannot encode, so that tables work on ASCII terminals."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_PLAIN.get(char) or _escape(char) for char in lost), error.end


codecs.register_error(PLAIN, _plainly)
