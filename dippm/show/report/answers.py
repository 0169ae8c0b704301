"""The view of each answer: its output in a terminal, a notebook and a page.

To add an answer: a row in `VIEWS`, and the functions that it names.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Iterator
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from dippm.base.printable import printable
from dippm.show.report.parts import AnswerPart, StderrLine
from dippm.show.report.shell import note_list, note_markup, page, table_markup
from dippm.show.report.tables import TerminalTable

if TYPE_CHECKING:
    from dippm.base.answer import Answer

NEWLINE = "\n"
WIDTH = 100
"""Width of the text where there is no terminal."""


class View(NamedTuple):
    """View of one class of answers; functions are "module:function" of `dippm.show.report`.

    Attributes:
        parts: function that yields the terminal output, beginning with the main table.
        picture: function that returns the markup of the page's picture; "" without one.
        page: function that returns the whole page, for answers that need more than both.
    """

    parts: str
    picture: str = ""
    page: str = ""


VIEWS = {
    "BatchSweep": View("sweep:batch_parts", page="sweep_page:batch_page"),
    "Check": View("check_formats:check_parts", "check_formats:check_bars"),
    "Choice": View("choice:choice_parts", page="choice_page:choice_page"),
    "Comparison": View("comparison:comparison_parts", page="html:render_comparison"),
    "Contender": View("choice:contender_parts"),
    "Difference": View("explanation:difference_parts", page="explanation_page:difference_page"),
    "Explanation": View("explanation:explanation_parts", page="explanation_page:explanation_page"),
    "Exploration": View("exploration:front_parts", page="exploration_page:exploration_page"),
    "LanguagePrediction": View("language:language_parts", "language:pictures"),
    "Listing": View("listing:listing_parts", "listing:listing_bars"),
    "MemoryFit": View("memory_fit:fit_parts", page="memory_fit:fit_page"),
    "Packing": View("packing:packing_parts", "packing:packing_bars"),
    "ParallelEstimate": View("parallel:parallel_parts", "parallel:step_bars"),
    "PipelinePrediction": View("pipelines:pipeline_parts", "pipelines:pictures"),
    "PowerPoint": View("sweep:point_parts"),
    "PowerSweep": View("sweep:power_parts", page="sweep_page:power_page"),
    "Prediction": View("console:prediction_parts", page="html:render_report"),
    "ResourceRequest": View("request:request_parts", "request:request_bars"),
    "RunningCost": View("costs:cost_parts", page="costs:cost_page"),
    "SharedGpu": View("sharing:sharing_parts", "sharing:process_bars"),
    "WhatIf": View("explanation:what_if_parts", "explanation_page:what_if_bars"),
}


def parts_of(answer: Answer, **how: Any) -> Iterator[AnswerPart]:
    """Yield the terminal output of an answer.

    Args:
        answer: answer of a class in `VIEWS`.
        **how: options of its command, such as `depth`; see the function of its view.
    """
    yield from _found(_view(answer).parts)(answer, **how)


def text_of(answer: Answer) -> str:
    """Return an answer as text of the terminal's width."""
    from rich.console import Console

    out = io.StringIO()
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    console = Console(file=out, width=width, highlight=False, emoji=False, color_system=None)
    for part in parts_of(answer):
        if isinstance(part, TerminalTable):
            console.print(part)
        elif isinstance(part, str):
            out.write(printable(part, keep="\n") + "\n")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def markup_of(answer: Answer) -> str:
    """Return an answer as HTML for a notebook."""
    return _markup(parts_of(answer), titled=True)


def page_of(answer: Answer, **how: Any) -> str:
    """Return the page of an answer.

    Args:
        answer: answer of a class in `VIEWS`.
        **how: options as in `parts_of`.

    Raises:
        DippmError: if a plotting library is missing.
    """
    view = _view(answer)
    if view.page:
        return str(_found(view.page)(answer, **how))
    parts = list(parts_of(answer, **how))
    tables = [part for part in parts if isinstance(part, TerminalTable)]
    title = next((table.title for table in tables if table.title), "")
    title = title or getattr(answer, "title", type(answer).__name__)
    picture = _found(view.picture)(answer) if view.picture else ""
    return page(title.strip(), picture + _markup(parts), answer.to_dict())


def _markup(parts: Iterable[AnswerPart], *, titled: bool = False) -> str:
    """Return parts as markup: tables with captions, and lines between them as lists."""
    body, notes = "", list[str]()
    for part in parts:
        if isinstance(part, TerminalTable):
            title = part.title.strip() if titled or body else ""
            body += note_list(notes) + (f"<p>{note_markup(title)}</p>" if title else "")
            body += table_markup(part, typed=True)
            notes = [line for line in part.caption.split("\n") if line.strip()]
        elif isinstance(part, str) and "\n" in part:
            body += f"<pre>{escape(printable(part, keep=NEWLINE))}</pre>"
        elif isinstance(part, str):
            notes.append(part)
    return body + note_list(notes)


def _view(answer: Answer) -> View:
    return VIEWS[type(answer).__name__]


def _found(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(f"dippm.show.report.{module}"), function)


__all__ = ["AnswerPart", "StderrLine", "markup_of", "page_of", "parts_of", "text_of"]
