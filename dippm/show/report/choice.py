"""Reports on choices and on resource requests: terminal tables, and pages with charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log
from typing import TYPE_CHECKING, Any

from dippm.base.answer import cell_text
from dippm.base.number_format import between, show
from dippm.base.printable import printable
from dippm.decide.choice import Choice, Contender
from dippm.estimate.conditions import MAX_BATCH
from dippm.estimate.models.targets import Estimate
from dippm.show.report.answers import ESTIMATES, AnswerPart, StderrLine, estimate_row, warning_lines
from dippm.show.report.bars import Bar, bars
from dippm.show.report.plotted import (
    apply_style,
    figure_markup,
    log_ticks,
    require_libraries,
    script,
)
from dippm.show.report.shell import note_list, page, table_markup
from dippm.show.report.tables import Column, TerminalTable

if TYPE_CHECKING:
    from dippm.decide.scheduling import ResourceRequest

# A choice in the terminal.


MOST_ROWS = 12
"""Default number of rows of a ranking."""
MOST_REMARKS = 10
"""Maximum number of warnings that are listed."""
MOST_NAMED = 4
"""Maximum number of places that one line names."""
LEAST_COST = 1e-3
"""Cost of a batch below which costs are given per million batches."""
LABELS = {
    "latency_ms": "latency ms",
    "samples_per_s": "samples/s",
    "energy_per_sample_j": "energy J/sample",
    "cost_per_million": "cost per million",
    "carbon_per_million_g": "g CO2 per million",
}


def choice_parts(
    choice: Choice, *, top: int = MOST_ROWS, slices: bool = False
) -> Iterator[AnswerPart]:
    """Yield the ranking, highlights, and the prediction for the best place.

    Args:
        choice: result of `choose` or `smallest_slice`.
        top: number of rows of the ranking.
        slices: whether to list the slices of a GPU by size instead, with the one to take.
    """
    yield slice_table(choice) if slices else choice_table(choice, top)
    said = remarks(choice, len(choice.contenders) if slices else top)
    for remark in (*(advice(choice) if slices else ()), *said):
        yield StderrLine(remark) if remark.startswith(" !") else remark
    if choice.best is not None and choice.best.prediction is not None:
        yield choice.best.prediction


def contender_parts(c: Contender) -> Iterator[AnswerPart]:
    """Yield the estimates of one place, or why they are absent."""
    labels = ("latency ms", "samples/s", "energy J", "memory MB")
    names = ("latency_ms", "samples_per_s", "energy_j", "memory_mb")
    rows = []
    for label, name in zip(labels, names, strict=True):
        found = c.estimate(name)
        absent = (label, f"not available: {c.why_absent(name)}", "")
        rows.append(absent if found is None else estimate_row(label, found))
    most = "none" if c.largest_batch is None else f"{c.largest_batch:,}"
    rows.append(("largest batch", most, f"of {c.capacity_mb:,} MB"))
    rows.append(("copies", f"{c.copies}", "side by side on a GPU"))
    lines = [f" ! {miss}" for miss in c.misses]
    lines.append(f" {c.prediction.provenance.checkpoint if c.prediction else ''}")
    yield TerminalTable(ESTIMATES, rows, f" {c.name} · batch {c.batch:,}", "\n".join(lines))
    if c.prediction is not None:
        yield from warning_lines(c.prediction.warnings)


def choice_table(choice: Choice, most: int) -> TerminalTable:
    """Return the first `most` contenders with their cost, or why they are ruled out."""
    shown = choice.contenders[:most]
    ranks = dict(zip(map(id, choice.ranked), choice.ranks, strict=True))
    several = len({c.batch for c in shown}) > 1
    columns = [
        Column("#"),
        Column("where", folds=True),
        *[Column("batch")] * several,
        Column(LABELS["latency_ms"]),
        Column("90 % interval", rank=1),
        Column(LABELS["samples_per_s"], rank=0 if choice.by == "throughput" else 3),
        Column(LABELS["energy_per_sample_j"], rank=0 if choice.by == "energy" else 3),
        *[Column(cost_label(choice))] * choice.priced,
        *[Column(LABELS["carbon_per_million_g"])] * choice.emits,
        Column("memory MB", rank=4),
        Column("largest batch", rank=2),
    ]
    sure = any(c.probability_first is not None for c in shown)
    reasons = any(choice.reason(c) for c in shown)
    columns += [Column("first")] * sure + [Column("why not", folds=True)] * reasons
    rows = []
    for c in shown:
        cells = [str(ranks.get(id(c), "–")), c.name, *[f"{c.batch:,}"] * several]
        latency = c.estimate("latency_ms")
        cells += [
            _value_text(latency),
            _interval_text(latency),
            _value_text(c.estimate("samples_per_s")),
        ]
        cells += [_value_text(c.estimate("energy_per_sample_j"))]
        cells += [_value_text(c.estimate("cost_per_million"))] * choice.priced
        cells += [_value_text(c.estimate("carbon_per_million_g"))] * choice.emits
        cells += [_value_text(c.estimate("memory_mb")), largest(c)]
        cells += [percent(c.probability_first)] * sure + [choice.reason(c) or ""] * reasons
        rows.append(cells)
    return TerminalTable(columns, rows, " " + choice.title, " " + choice.footer)


def slice_table(choice: Choice) -> TerminalTable:
    """Return the slices of a GPU, smallest first, with the reason if ruled out."""
    columns = (
        Column("slice", folds=True),
        Column("usable MB"),
        Column("needs up to MB"),
        Column("latency ms"),
        Column("90 % interval", rank=1),
        Column("largest batch", rank=2),
        Column("copies", rank=3),
        Column("verdict", folds=True),
    )
    rows = []
    for c in choice.contenders:
        latency = c.estimate("latency_ms")
        known = c.prediction is not None
        bound_mb = c.memory_bound_mb
        verdict = choice.reason(c) or "will do"
        verdict += f", since {c.vouched_by} does" if c.feasible and c.vouched_by else ""
        verdict = "smallest that will do" if c is choice.best else verdict
        rows.append(
            (
                c.name.removeprefix(f"{c.device.name} ")
                if c.name != c.device.name
                else "whole GPU",
                f"{c.capacity_mb:,}" if known else "–",
                "–" if bound_mb is None else show(bound_mb),
                _value_text(latency),
                _interval_text(latency),
                largest(c),
                str(c.copies) if known else "–",
                verdict,
            )
        )
    return TerminalTable(columns, rows, " " + choice.title, " " + choice.footer)


def remarks(choice: Choice, most: int) -> Iterator[str]:
    """Yield highlights, the number of rows that are not shown, and warnings of the highlights."""
    if choice.by != "size":
        yield from _highlights(choice)
    hidden = choice.contenders[most:]
    if hidden:
        out = sum(choice.reason(c) is not None for c in hidden)
        yield f" and {len(hidden)} more, {out} of them no choice: --top {len(choice.contenders)}"
    named = {c.name: c for c in (choice.best, choice.fastest, choice.most_frugal) if c is not None}
    warnings = choice.warnings(list(named.values()))
    for warning in list(warnings)[:MOST_REMARKS]:
        yield f" ! {printable(warning)}"
    if len(warnings) > MOST_REMARKS:
        yield f" ! and {len(warnings) - MOST_REMARKS} other warnings, see --json"


def advice(choice: Choice) -> Iterator[str]:
    """Yield the slice to take, and the compute slices of the GPU that it leaves idle."""
    best = choice.best
    if best is None:
        return
    if best.mig is None:
        yield f" no slice is sufficient: use the whole {best.device.name}"
        return
    side = f", {best.copies} fit side by side" if best.copies > 1 else ""
    yield f" take {best.mig.name} of {best.device.name}{side}"
    if best.stranded_compute_slices:
        idle = "slice then idles" if best.stranded_compute_slices == 1 else "slices then idle"
        yield (
            f" ! {best.copies} × {best.mig.name} take all of the memory: "
            f"{best.stranded_compute_slices} compute {idle}"
        )


def cost_label(choice: Choice) -> str:
    """Return the header of costs, with the currency."""
    currency = f" ({choice.currency})" if choice.currency else ""
    return printable(LABELS["cost_per_million"] + currency)


def largest(c: Contender) -> str:
    """Return the largest batch in words."""
    if c.largest_batch is None:
        return "none" if c.prediction is not None else "–"
    return f"{c.largest_batch:,}" + (" or more" if c.largest_batch == MAX_BATCH else "")


def percent(probability: float | None) -> str:
    """Format a probability, which never prints as 0 or 100 %."""
    if probability is None:
        return "–"
    if probability < 0.01:
        return "< 1 %"
    return "> 99 %" if probability > 0.99 else f"{100 * probability:.0f} %"


def _highlights(choice: Choice) -> Iterator[str]:
    best = choice.best
    if best is not None:
        chance = percent(best.probability_first)
        several = len({c.batch for c in choice.contenders}) > 1
        at = f", batch {best.batch:,}" if several else ""
        yield f" best          {printable(best.name)}{at}: the first with a probability of {chance}"
        if choice.best_ties:
            tied = [c.name for c in choice.best_ties]
            yield f" same place    {_join_names(tied)}: predicted alike"
        if choice.rivals:
            chances = [f"{c.name} {percent(c.probability_first)}" for c in choice.rivals]
            why = "ranked by what is predicted, they differ by less than its errors"
            yield f" as likely     {_join_names(chances)}: {why}"
    for label, c, name in (
        ("fastest", choice.fastest, "samples_per_s"),
        ("most frugal", choice.most_frugal, "energy_per_sample_j"),
    ):
        found = c and c.estimate(name)
        if c and found:
            unit = "samples/s" if name == "samples_per_s" else "J per sample"
            yield f" {label:<13} {printable(c.name)}: {show(found.value)} {unit}"
    if choice.front:
        y = "cost" if choice.axes[1] == "cost_per_million" else "energy"
        names = ", ".join(c.name for c in choice.front)
        yield f" latency and {y}, none better in both: {printable(names)}"
    cost = best and best.estimate("cost_per_step")
    if best and cost:
        epoch = best.estimate("cost_per_epoch")
        currency = f" {choice.currency}" if choice.currency else ""
        of_epoch = f", the data set {show(epoch.value)}{currency}" if epoch else ""
        count, value = ("a batch", cost.value)
        if value < LEAST_COST:
            count, value = "a million batches", 1e6 * value
        verb = "costs" if count == "a batch" else "cost"
        yield printable(f" {count} on {best.name} {verb} {value:.3g}{currency}{of_epoch}")


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return printable(", ".join(names[:MOST_NAMED])) + more


def _value_text(estimate: Estimate | None) -> str:
    return cell_text(estimate and estimate.value)


def _interval_text(estimate: Estimate | None) -> str:
    return between(estimate.interval.low, estimate.interval.high) if estimate else ""


# A choice as a page.


LABEL_SIZE = (0.3, 0.08)
"""Width and height of a label relative to the plot, on a phone."""
SAME = (0.005, 0.005)
"""Distance on either axis, as a difference of logarithms, below which points share a label."""
MOST_LABELS = 4
"""Number of labels that have room on a phone; of more, none is shown there."""
UNLABELLED = "<style>@media (max-width: 40rem) { .textpoint text { display: none } }</style>"
SIDES = ("top right", "bottom right", "top left", "bottom left")
BLUE, RED, GREY = "#3b6fb6", "#d1495b", "#8d99ae"


def choice_page(choice: Choice, **_: Any) -> str:
    """Return the page of a choice: bars for a choice by size, else the Pareto front.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    everything = len(choice.contenders)
    notes = note_list(remarks(choice, everything))
    if choice.by == "size":
        said = note_list(advice(choice))
        body = said + slice_bars(choice) + table_markup(slice_table(choice)) + notes
        return page(choice.title, body, choice.to_dict())
    plot = figure_markup(front_figure(choice), "choice")
    plot += UNLABELLED * (len(choice.front) > MOST_LABELS)
    table = table_markup(choice_table(choice, everything), name="ranking")
    return page(choice.title, plot + notes + table, choice.to_dict(), script=script())


def slice_bars(choice: Choice) -> str:
    """Return bars of the memory that is needed and available, and of the latency, per place."""
    known = [c for c in choice.contenders if c.prediction is not None]
    memory, latency = [], []
    for c in known:
        name = c.name if c is not choice.best else f"{c.name} (smallest that will do)"
        needed, time = c.estimate("memory_mb"), c.estimate("latency_ms")
        is_out = choice.reason(c) is not None
        bound_mb = c.memory_bound_mb
        if needed is not None and bound_mb is not None:
            said = f"up to {show(bound_mb)} of {c.capacity_mb:,} MB"
            memory.append(
                Bar(name, needed.value, said, needed.interval, float(c.capacity_mb), muted=is_out)
            )
        if time is not None:
            said = f"{show(time.value)} ms"
            limit = choice.limits.slo_ms
            latency.append(Bar(name, time.value, said, time.interval, limit, muted=is_out))
    held = f"limit of {choice.limits.slo_ms:g} ms" if choice.limits.slo_ms is not None else ""
    return bars("memory needed, MB (grey: will not do)", memory, limit="what it has") + bars(
        "latency, ms", latency, limit=held
    )


def front_figure(choice: Choice) -> Any:
    """Return a plot of latency against cost or energy of every place, with the Pareto front.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    import plotly.graph_objects as go

    on_front = set(map(id, choice.front))
    groups = {
        "no choice": [c for c in choice.contenders if choice.reason(c) is not None],
        "beaten in both": [c for c in choice.ranked if id(c) not in on_front],
        "front": [c for c in choice.front if choice.reason(c) is None],
    }
    figure = go.Figure()
    colours = dict(zip(groups, (GREY, BLUE, RED), strict=True))
    for name, group in groups.items():
        known = [c for c in group if choice.position(c) is not None]
        if known:
            figure.add_scatter(**_scatter_trace(choice, known, name, colours[name]))
    x, y = (_axis_title(choice, name) for name in choice.axes)
    places = [at for c in choice.contenders if (at := choice.position(c)) is not None]
    figure.update_xaxes(title=x, **log_ticks(at[0] for at in places))
    figure.update_yaxes(title=y, **log_ticks(at[1] for at in places))
    return apply_style(figure, 560)


def _scatter_trace(
    choice: Choice, group: Sequence[Contender], name: str, colour: str
) -> dict[str, Any]:
    """Return a scatter trace of places; a step line connects those on the Pareto front."""
    labels, sides = _place_labels(choice, group)
    values: dict[str, list[float]] = {}
    errors: dict[str, dict[str, Any]] = {}
    for axis, column in zip("xy", choice.axes, strict=True):
        found = [c.estimate(column) for c in group]
        known = [estimate for estimate in found if estimate is not None]
        values[axis] = [estimate.value for estimate in known]
        errors[axis] = {
            "type": "data",
            "symmetric": False,
            "array": [e.interval.high - e.value for e in known],
            "arrayminus": [e.value - e.interval.low for e in known],
            "thickness": 0.6,
            "width": 0,
            "color": colour,
            "visible": name == "front",
        }
    return {
        "x": values["x"],
        "y": values["y"],
        "error_x": errors["x"],
        "error_y": errors["y"],
        "mode": "markers+lines+text" if name == "front" else "markers",
        "line": {"shape": "hv", "color": colour, "width": 1},
        "marker": {"color": colour, "size": 9 if name == "front" else 6},
        "text": labels,
        "textposition": sides,
        "textfont": {"size": 10},
        "name": name,
        "hovertext": [_hover_text(choice, c) for c in group],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _place_labels(choice: Choice, group: Sequence[Contender]) -> tuple[list[str], list[str]]:
    """Return label and side of each place such that labels of neighbours do not overlap.

    Places at one position share a label.
    """
    at = [choice.position(c) or (1.0, 1.0) for c in group]
    everywhere = [p for c in choice.contenders if (p := choice.position(c)) is not None]
    spans = [log(max(axis) / min(axis)) for axis in zip(*everywhere, strict=True)]
    labels: list[str] = []
    sides: list[str] = []
    for n, c in enumerate(group):
        label = escape(printable(c.name))
        same = next((k for k in range(n) if labels[k] and _are_close(at[k], at[n], SAME)), None)
        if same is not None:
            labels[same] += f", {label}"
            label = ""
        reach = [part * span for part, span in zip(LABEL_SIZE, spans, strict=True)]
        taken = [sides[k] for k in range(n) if labels[k] and _are_close(at[k], at[n], reach)]
        sides.append(next((side for side in SIDES if side not in taken), SIDES[0]))
        labels.append(label)
    return labels, sides


def _are_close(one: Sequence[float], other: Sequence[float], reach: Sequence[float]) -> bool:
    """Return whether two places are within reach of each other on both logarithmic axes."""
    return all(abs(log(a / b)) <= near for a, b, near in zip(one, other, reach, strict=True))


def _hover_text(choice: Choice, c: Contender) -> str:
    lines = [c.name]
    for column in (*LABELS, "power_w", "memory_mb"):
        found = c.estimate(column)
        if found is not None:
            lines.append(f"{_axis_title(choice, column)}: {show(found.value)}")
    if c.probability_first is not None:
        lines.append(f"really the first: {percent(c.probability_first)}")
    lines.append(choice.reason(c) or "")
    return "<br>".join(escape(printable(line)) for line in lines if line)


def _axis_title(choice: Choice, column: str) -> str:
    if column == "cost_per_million":
        return cost_label(choice)
    return LABELS.get(column) or {"power_w": "power W", "memory_mb": "memory MB"}[column]


# Resource requests.


def request_parts(request: ResourceRequest) -> Iterator[AnswerPart]:
    """Yield every place that was considered, the requested one, and notes."""
    yield slice_table(request.choice)
    yield str(request)
    yield from warning_lines(request.notes)


def request_bars(request: ResourceRequest) -> str:
    """Return bars of the memory that is needed and available, and of the latency, per place."""
    return slice_bars(request.choice)
