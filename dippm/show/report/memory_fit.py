"""Whether a module fits a GPU: the prediction with what it is held against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dippm.decide.memory_fit import MemoryFit
from dippm.show.report.html import answer_markup, memory_bars, time_bars
from dippm.show.report.parts import Part
from dippm.show.report.shell import note_markup, page


def fit_parts(fit: MemoryFit) -> Iterator[Part]:
    """Yield the prediction with what was assumed, whether it fits, and what checks it."""
    yield str(fit)
    yield fit.prediction


def fit_page(fit: MemoryFit, **_: Any) -> str:
    """Return the page of an answer: whether it fits, and what the memory consists of."""
    shown = replace(fit.prediction, warnings=fit.warnings)
    body = f"<p><b>{note_markup(fit.summary)}</b></p>{memory_bars(shown, room_mb=fit.room_mb)}"
    return page(shown.title, body + answer_markup(shown) + time_bars(shown), fit.to_dict())
