"""Language models in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator

from dippm.base.number_format import show
from dippm.decide.language.answer import HEADER, UNVERIFIED, LanguagePrediction
from dippm.show.report.bars import Bar, bars
from dippm.show.report.parts import AnswerPart, warning_lines
from dippm.show.report.tables import Column, TerminalTable

RANKS = {"90 % interval": 2, "J/token": 1}


def language_parts(found: LanguagePrediction) -> Iterator[AnswerPart]:
    """Yield the tables of a request and of decode steps by context, and warnings."""
    yield figures_table(found)
    yield steps_table(found)
    yield from warning_lines(found.warnings)
    yield f" verify        no command: {UNVERIFIED}"


def figures_table(found: LanguagePrediction) -> TerminalTable:
    """Return the total cost of a request."""
    columns = (Column(""), Column("predicted"), Column("", folds=True, rank=1))
    return TerminalTable(columns, list(found.figures()), " " + found.title)


def steps_table(found: LanguagePrediction) -> TerminalTable:
    """Return the cost of a decode step by context."""
    columns = [Column(name, rank=RANKS.get(name, 0)) for name in HEADER]
    caption = " " + found.footer
    if not all(step.fits for step in found.steps):
        caption = f" ! may not fit {found.setting.conditions.device.name}\n{caption}"
    return TerminalTable(columns, found.table(), " one token for each sequence", caption)


def pictures(found: LanguagePrediction) -> str:
    """Return the parts of the memory, and time and memory by context, as bars."""
    m, capacity_mb = found.memory, float(found.setting.conditions.device.memory_mb)
    parts = (
        ("weights", m.weights_mb),
        ("cache", m.cache_mb),
        ("activations", m.activations_mb + m.workspace_mb),
        ("context", m.context_mb),
    )
    said = f"{show(m.total_mb)} of {capacity_mb:,.0f} MB"
    whole = Bar("after the last token", m.total_mb, said, limit=capacity_mb, parts=parts)
    times, memory = [], []
    for step in found.steps:
        name, time = f"context {step.context:,}", step.cost.latency_ms
        times.append(Bar(name, time.value, f"{show(time.value)} ms", time.interval))
        said = f"{show(step.memory_mb)} MB"
        memory.append(Bar(name, step.memory_mb, said, limit=capacity_mb, muted=not step.fits))
    has = f"{found.setting.conditions.device.name} has {capacity_mb:,.0f} MB"
    return (
        bars("memory of one GPU, MB", [whole], limit=has)
        + bars("a decode step by context, ms", times)
        + bars("memory of one GPU by context, MB (grey: does not fit)", memory, limit=has)
    )
