"""How each answer looks: what a terminal, a notebook and a page show of it.

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
from dippm.show.report.parts import Aside, Part
from dippm.show.report.shell import listed, note_markup, page, table_markup
from dippm.show.report.tables import Fitted

if TYPE_CHECKING:
    from dippm.base.answer import Answer

NEWLINE = "\n"
WIDTH = 100
"""Columns where there is no terminal."""


class View(NamedTuple):
    """How one class of answers looks; functions are "module:function" of `dippm.show.report`.

    Attributes:
        parts: yields what a terminal shows, first the table that stands for the answer.
        picture: returns the markup of the picture that answers the page's question.
        page: returns the whole page, of answers that need more than picture and parts.
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


def parts_of(answer: Answer, **how: Any) -> Iterator[Part]:
    """Yield what a terminal shows of an answer, in its order.

    Args:
        answer: of a class in `VIEWS`.
        **how: what its command can ask for, such as `depth`; see the function of its view.
    """
    yield from _found(_view(answer).parts)(answer, **how)


def text_of(answer: Answer) -> str:
    """Return an answer as text, as wide as the terminal."""
    from rich.console import Console

    out = io.StringIO()
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    console = Console(file=out, width=width, highlight=False, emoji=False, color_system=None)
    for part in parts_of(answer):
        if isinstance(part, Fitted):
            console.print(part)
        elif isinstance(part, str):
            out.write(printable(part, keep="\n") + "\n")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def markup_of(answer: Answer) -> str:
    """Return an answer as markup of a notebook."""
    return _markup(parts_of(answer), titled=True)


def page_of(answer: Answer, **how: Any) -> str:
    """Return the page of an answer.

    Args:
        answer: of a class in `VIEWS`.
        **how: as `parts_of` has it; what a page always shows is not asked for.

    Raises:
        DippmError: if a library that draws is missing.
    """
    view = _view(answer)
    if view.page:
        return str(_found(view.page)(answer, **how))
    parts = list(parts_of(answer, **how))
    tables = [part for part in parts if isinstance(part, Fitted)]
    title = next((table.title for table in tables if table.title), "")
    title = title or getattr(answer, "title", type(answer).__name__)
    picture = _found(view.picture)(answer) if view.picture else ""
    return page(title.strip(), picture + _markup(parts), answer.to_dict())


def _markup(parts: Iterable[Part], *, titled: bool = False) -> str:
    """Return tables, each with its caption, and the lines between them as lists."""
    body, notes = "", list[str]()
    for part in parts:
        if isinstance(part, Fitted):
            title = part.title.strip() if titled or body else ""
            body += listed(notes) + (f"<p>{note_markup(title)}</p>" if title else "")
            body += table_markup(part, typed=True)
            notes = [line for line in part.caption.split("\n") if line.strip()]
        elif isinstance(part, str) and "\n" in part:
            body += f"<pre>{escape(printable(part, keep=NEWLINE))}</pre>"
        elif isinstance(part, str):
            notes.append(part)
    return body + listed(notes)


def _view(answer: Answer) -> View:
    return VIEWS[type(answer).__name__]


def _found(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(f"dippm.show.report.{module}"), function)


__all__ = ["Aside", "Part", "markup_of", "page_of", "parts_of", "text_of"]
