"""Pipelines and language models in the terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.language.answer import HEADER as STEP_COLUMNS
from dippm.decide.language.answer import UNVERIFIED, LanguagePrediction
from dippm.decide.pipelines.answer import HEADER as STAGE_COLUMNS
from dippm.decide.pipelines.answer import PipelinePrediction
from dippm.decide.pipelines.memory import MemoryPhase
from dippm.estimate.models.targets import Interval
from dippm.show.report.answers import AnswerPart, warning_lines
from dippm.show.report.bars import COLOURS, MOST_TICKS, Bar, bars, legend, round_step
from dippm.show.report.tables import Column, TerminalTable

STAGE_RANKS = {"precision": 3, "share": 2, "J": 1}
HEIGHT, BOTTOM = 280, 34
LETTER = 100 * 7
"""Width of a letter in pixels, times 100 %."""
WIDE, NARROW = 1100, 300
"""Width of the picture in pixels on a desk and on a phone."""
PARTS = (("context", "context_mb"), ("weights", "weights_mb"), ("results", "results_mb"))
WORKING = ("activations and workspace", "working_mb")
Span = tuple[MemoryPhase, float, float]
LEAST_SHOWN = 0.004
"""Smallest width of a phase relative to the picture, so that short stages stay visible."""


def pipeline_parts(
    found: PipelinePrediction, *, tree: bool = False, depth: int = 2
) -> Iterator[AnswerPart]:
    """Yield the totals, the stages, their modules if `tree`, and warnings."""
    from dippm.show.report.console import tree_table

    yield _pipeline_figures(found)
    yield stages_table(found)
    if tree:
        yield tree_table(found.tree, depth)
    yield from warning_lines(found.warnings)


def _pipeline_figures(found: PipelinePrediction) -> TerminalTable:
    """Return the total cost of the pipeline."""
    columns = (Column(""), Column("predicted"), Column("90 % interval", folds=True, rank=1))
    return TerminalTable(columns, list(found.figures()), " " + found.title)


def stages_table(found: PipelinePrediction) -> TerminalTable:
    """Return the cost of each stage."""
    columns = [
        Column(name, folds=name == "stage", rank=STAGE_RANKS.get(name, 0)) for name in STAGE_COLUMNS
    ]
    return TerminalTable(columns, found.table(), caption=" " + found.footer)


def pipeline_bars(found: PipelinePrediction) -> str:
    """Return the latency of each stage, and the memory over time."""
    return stage_bars(found) + memory_picture(found)


def stage_bars(found: PipelinePrediction) -> str:
    """Return the latency of each stage as bars."""
    rows = []
    for stage in found.stages:
        interval, runs = stage.prediction.intervals["latency_ms"], stage.stage.repeat
        wide = Interval(runs * interval.low, runs * interval.high, interval.coverage)
        parts = (("runs", stage.latency_ms), ("copies of weights", stage.copy_ms))
        times = f"{runs:,} × " if runs > 1 else ""
        said = f"{show(stage.latency_ms + stage.copy_ms)} ms"
        name = f"{times}{stage.stage.name}"
        with_copies = parts if stage.copy_ms else ()
        rows.append(Bar(name, stage.latency_ms, said, wide, parts=with_copies))
    return bars("latency by stage, ms", rows)


def memory_picture(found: PipelinePrediction) -> str:
    """Return the memory over time as SVG, whose text keeps its size; "" if it is absent."""
    if not found.timeline or found.memory_mb is None:
        return ""
    bound, capacity = found.memory_bound_mb, found.capacity_mb
    tallest = max(found.memory_mb, bound or 0.0)
    shows_capacity = capacity <= 1.6 * tallest
    most = 1.08 * max(tallest, capacity if shows_capacity else 0.0)

    def height(mb: float) -> float:
        return (HEIGHT - BOTTOM) * mb / most

    def y(mb: float) -> float:
        return HEIGHT - BOTTOM - height(mb)

    drawn = ""
    colours = dict(zip([name for name, _ in (*PARTS, WORKING)], COLOURS, strict=False))
    spans = list(_places(found))
    for moment, start, end in spans:
        at = 0.0
        said = f"{moment.stage}: {moment.what}, {show(moment.memory_mb)} MB"
        for name, key in (*PARTS, WORKING):
            mb = getattr(moment, key)
            drawn += (
                f'<rect x="{start:.3f}%" y="{y(at + mb):.1f}" width="{end - start:.3f}%" '
                f'height="{height(mb):.1f}" fill="{colours[name]}">'
                f"<title>{escape(printable(said))}</title></rect>"
            )
            at += mb
    for name, start, end in _labels(spans):
        room = (end - start) / (LETTER * len(name))
        if room > 1 / WIDE:
            is_long = ' class="long"' * (room < 1 / NARROW)
            drawn += _text(
                f"{(start + end) / 2:.3f}%", HEIGHT - 14, name, f'text-anchor="middle"{is_long}'
            )
    lines = [(bound, "99 % bound of the peak", "--ink")] if bound else []
    lines += [(float(capacity), "memory of the device", "--alarm")] if shows_capacity else []
    for mb, name, colour in lines:
        drawn += (
            f'<line x1="0" x2="100%" y1="{y(mb):.1f}" y2="{y(mb):.1f}" '
            f'stroke="var({colour})" stroke-dasharray="5 4"/>'
            + _text("100%", y(mb) - 4, f"{name}: {mb:,.0f} MB")
        )
    step = round_step(most / MOST_TICKS)
    for mb in (step * n for n in range(int(most / step) + 1)):
        drawn += _text("-6", y(mb) + 4, f"{mb:,.0f}")
    return (
        '<figure class="bars memory"><figcaption>memory over time, MB '
        f"({show(found.latency_ms)} ms from left to right)</figcaption>"
        f'{legend(colours)}<svg height="{HEIGHT}" role="img">{drawn}</svg></figure>'
    )


def _places(found: PipelinePrediction) -> Iterator[Span]:
    """Yield each phase with its start and end in % of the width; short ones are widened."""
    whole = found.timeline[-1].end_ms or 1.0
    shares = [max((m.end_ms - m.start_ms) / whole, LEAST_SHOWN) for m in found.timeline]
    at, scale = 0.0, 100 / sum(shares)
    for moment, share in zip(found.timeline, shares, strict=True):
        yield moment, at, at + share * scale
        at += share * scale


def _labels(spans: Sequence[Span]) -> Iterator[tuple[str, float, float]]:
    """Yield each stage with the span of the picture in which it runs or is copied."""
    names = dict.fromkeys(moment.stage for moment, _, _ in spans)
    for name in names:
        own = [(start, end) for moment, start, end in spans if moment.stage == name]
        yield name, own[0][0], own[-1][1]


def _text(x: str, y: float, text: str, how: str = 'text-anchor="end"') -> str:
    return f'<text x="{x}" y="{y:.1f}" {how}>{escape(printable(text))}</text>'


STEP_RANKS = {"90 % interval": 2, "J/token": 1}


def language_parts(found: LanguagePrediction) -> Iterator[AnswerPart]:
    """Yield the tables of a request and of decode steps by context, and warnings."""
    yield _request_figures(found)
    yield steps_table(found)
    yield from warning_lines(found.warnings)
    yield f" verify        no command: {UNVERIFIED}"


def _request_figures(found: LanguagePrediction) -> TerminalTable:
    """Return the total cost of a request."""
    columns = (Column(""), Column("predicted"), Column("", folds=True, rank=1))
    return TerminalTable(columns, list(found.figures()), " " + found.title)


def steps_table(found: LanguagePrediction) -> TerminalTable:
    """Return the cost of a decode step by context."""
    columns = [Column(name, rank=STEP_RANKS.get(name, 0)) for name in STEP_COLUMNS]
    caption = " " + found.footer
    if not all(step.fits for step in found.steps):
        caption = f" ! may not fit {found.setting.conditions.device.name}\n{caption}"
    return TerminalTable(columns, found.table(), " one token for each sequence", caption)


def language_bars(found: LanguagePrediction) -> str:
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
