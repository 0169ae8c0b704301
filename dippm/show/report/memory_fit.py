"""Whether a module fits a GPU, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dippm.decide.memory_fit import MemoryFit
from dippm.show.report.html import answer_markup, memory_bars, time_bars
from dippm.show.report.parts import AnswerPart
from dippm.show.report.shell import note_markup, page


def fit_parts(fit: MemoryFit) -> Iterator[AnswerPart]:
    """Yield the prediction with its assumptions, whether it fits, and the checking command."""
    yield str(fit)
    yield fit.prediction


def fit_page(fit: MemoryFit, **_: Any) -> str:
    """Return the page of an answer: whether the module fits, and the parts of the memory."""
    shown = replace(fit.prediction, warnings=fit.warnings)
    body = f"<p><b>{note_markup(fit.summary)}</b></p>{memory_bars(shown, room_mb=fit.room_mb)}"
    return page(shown.title, body + answer_markup(shown) + time_bars(shown), fit.to_dict())
