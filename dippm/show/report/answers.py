"""Views of answers: their output in a terminal, a notebook and a page.

To add a class of answers, add a row to `VIEWS` and the functions that it names. The last section is
the answer of commands that list entries, `Listing`.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any, NamedTuple

from dippm.base.answer import Answer
from dippm.base.number_format import between, show
from dippm.base.printable import printable
from dippm.estimate.models.targets import Estimate
from dippm.estimate.prediction import Prediction
from dippm.show.report.bars import Bar, bars
from dippm.show.report.shell import note_list, note_markup, page, table_markup
from dippm.show.report.tables import Column, TerminalTable

# Parts of answers that several views share.

ESTIMATES = (Column(""), Column("predicted"), Column("90 % interval"))
"""Columns of a table of estimates, see `estimate_row`."""


class StderrLine(str):
    """A line about an answer rather than part of it: it goes to stderr."""

    __slots__ = ()


AnswerPart = TerminalTable | str | Prediction
"""A prediction stands for the `dippm measure` command that checks it."""


def warning_lines(warnings: Iterable[str]) -> Iterator[StderrLine]:
    """Yield warnings, each once."""
    for warning in dict.fromkeys(warnings):
        yield StderrLine(f" ! {printable(warning)}")


def estimate_row(label: str, found: Estimate) -> tuple[str, str, str]:
    """Return label, value and interval of a quantity, for `ESTIMATES`."""
    return label, show(found.value), between(found.interval.low, found.interval.high)


# Views.


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
    "BatchSweep": View("sweep:batch_parts", page="sweep:batch_page"),
    "Check": View("check_formats:check_parts", "check_formats:check_bars"),
    "Choice": View("choice:choice_parts", page="choice:choice_page"),
    "Comparison": View("predictions:comparison_parts", page="predictions:render_comparison"),
    "Contender": View("choice:contender_parts"),
    "Difference": View("explanation:difference_parts", page="explanation_page:difference_page"),
    "Explanation": View("explanation:explanation_parts", page="explanation_page:explanation_page"),
    "Exploration": View("exploration:front_parts", page="exploration:exploration_page"),
    "LanguagePrediction": View("pipelines:language_parts", "pipelines:language_bars"),
    "Listing": View("answers:listing_parts", "answers:listing_bars"),
    "MemoryFit": View("predictions:fit_parts", page="predictions:fit_page"),
    "Packing": View("sharing:packing_parts", "sharing:packing_bars"),
    "ParallelEstimate": View("sharing:parallel_parts", "sharing:step_bars"),
    "PipelinePrediction": View("pipelines:pipeline_parts", "pipelines:pipeline_bars"),
    "PowerPoint": View("sweep:point_parts"),
    "PowerSweep": View("sweep:power_parts", page="sweep:power_page"),
    "Prediction": View("console:prediction_parts", page="predictions:render_report"),
    "ResourceRequest": View("choice:request_parts", "choice:request_bars"),
    "RunningCost": View("predictions:cost_parts", page="predictions:cost_page"),
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
    parts = [_unchecked(part) for part in parts_of(answer, **how)]
    tables = [part for part in parts if isinstance(part, TerminalTable)]
    title = next((table.title for table in tables if table.title), "")
    title = title or getattr(answer, "title", type(answer).__name__)
    picture = _found(view.picture)(answer) if view.picture else ""
    return page(title.strip(), picture + _markup(parts), answer.to_dict())


def _unchecked(part: AnswerPart) -> AnswerPart:
    """Return a part without the line of how to check it, which every page has at its end."""
    if not isinstance(part, str) or isinstance(part, StderrLine):
        return part
    return "\n".join(line for line in part.split("\n") if not line.startswith(" verify"))


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
        elif isinstance(part, str) and part:
            notes.append(part)
    return body + note_list(notes)


def _view(answer: Answer) -> View:
    return VIEWS[type(answer).__name__]


def _found(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(f"dippm.show.report.{module}"), function)


# Listings.


@dataclass(frozen=True, slots=True)
class Listing(Answer):
    """Entries of one kind.

    Attributes:
        title: title of the page.
        entries: entries, each a flat mapping by column.
        document: JSON-ready data.
        parts: parts of the terminal output.
        drawn: column that the page plots, summed by the first column; "" without a plot.
        label: label of the plotted quantity, with its unit.
    """

    title: str
    entries: Sequence[Mapping[str, Any]]
    document: Mapping[str, Any]
    parts: Sequence[AnswerPart] = field(repr=False)
    drawn: str = ""
    label: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per entry."""
        return [dict(entry) for entry in self.entries]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return dict(self.document)


def listing_parts(listing: Listing) -> Iterator[AnswerPart]:
    """Yield the terminal output."""
    yield from listing.parts


def listing_bars(listing: Listing) -> str:
    """Return the plotted column as bars, summed by the first column."""
    sums: dict[str, float] = {}
    for entry in listing.entries:
        name, value = str(next(iter(entry.values()))), entry.get(listing.drawn)
        if value:
            sums[name] = sums.get(name, 0.0) + value
    largest = sorted(sums.items(), key=lambda item: -item[1])
    made = [Bar(name, value, show(value)) for name, value in largest]
    return bars(listing.label, made)
