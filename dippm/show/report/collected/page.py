"""Report on a collected set: its summary, self-contained page with figures, and terminal tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from dippm.base.number_format import show
from dippm.base.progress import tell
from dippm.measure.collected.rows import collected, read_joined
from dippm.measure.columns import COLUMNS
from dippm.show.report.collected import predictions, summary
from dippm.show.report.collected.predictions import PredictedRow, PredictionErrors
from dippm.show.report.collected.summary import DISTRIBUTED
from dippm.show.report.files import write_text
from dippm.show.report.plotted import (
    OTHER,
    apply_style,
    figure_markup,
    log_ticks,
    render,
    require_libraries,
)
from dippm.show.report.tables import PIPE_FOLD, shown

if TYPE_CHECKING:
    import pandas as pd

TEMPLATE = "collected.html.jinja"


@dataclass(frozen=True, slots=True)
class CollectedReport:
    """Report on a collected set.

    Attributes:
        title: name of the set, and its devices.
        rows: all rows of the set.
        figures: numbers of the summary, see `summary.summary`.
        compared: errors of predictions for the rows.
    """

    title: str
    rows: pd.DataFrame
    figures: dict[str, Any]
    compared: PredictionErrors

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `--json`."""
        return {**self.figures, "predictions": self.compared.to_dict()}

    def to_html(self) -> str:
        """Return the page.

        Raises:
            ReportNotInstalledError: if plotly or jinja2 is missing.
        """
        tell("drawing the page")
        require_libraries()
        from markupsafe import Markup

        text = (
            files("dippm.show.report").joinpath("templates", TEMPLATE).read_text(encoding="utf-8")
        )
        return render(
            text,
            title=self.title,
            plots={name: Markup(html) for name, html in self._plots().items()},
            columns=COLUMNS,
            compared=self.compared,
            errors=self.compared.errors(),
            **self.figures,
        )

    def _plots(self) -> dict[str, str]:
        used = summary.used_rows(self.rows)
        made = {"counts": counts_figure(self.rows)}
        if self.figures["coverage"]["families"]:
            made["coverage"] = coverage_figure(self.figures["coverage"])
        for target in _measured_targets(used):
            made[target] = distribution_figure(used, target)
        for target in predictions.TARGETS:
            points = [point for point in self.compared.points if point.target == target]
            if points:
                made[f"predicted {target}"] = prediction_figure(points)
        return {
            name: figure_markup(figure, name.replace(" ", "-")) for name, figure in made.items()
        }


def report_of(
    folder: Path,
    *,
    joined: Path | None = None,
    checkpoint: str | Path | None = None,
    predict: bool = True,
) -> CollectedReport:
    """Summarise a collected folder.

    Args:
        folder: folder of the collector.
        joined: output of `dataset.build_collected`, with graphs; None without one.
        checkpoint: see `predictions.compare`.
        predict: whether to predict models with a graph.

    Raises:
        RowsNotFoundError: if the folder has no rows.
        RowReaderNotInstalledError: if pandas or pyarrow is missing.
        DippmError: if a file is damaged.
    """
    tell("reading rows")
    found, extra = collected(folder), read_joined(joined)
    found = replace(found, rows=_mark_operators(found.rows))
    tell("summing up")
    figures = summary.summary(found, extra)
    compared = PredictionErrors(absent={"not asked for": 0})
    if predict:
        used = summary.used_rows(found.rows)
        compared = predictions.compare(used, extra, checkpoint=checkpoint)
    names = ", ".join(sorted(found.rows["device"].dropna().unique()))
    title = f"{folder.resolve().name}: measured on {names or 'an unknown device'}"
    return CollectedReport(title, found.rows, figures, compared)


def _mark_operators(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with families of single operators marked as such."""
    operators = rows["kind"] == "operator"
    return rows.assign(family=rows["family"].where(~operators, "operator " + rows["family"]))


def write_page(path: Path, report: CollectedReport) -> None:
    """Write the page of a set.

    Raises:
        DippmError: if the file cannot be written, or a library of reports is missing.
    """
    write_text(path, report.to_html())


# Figures of the page.


LABELS = {
    "latency_ms": "latency of one step, ms",
    "energy_j": "energy of one step, J",
    "memory_mb": "peak memory, MB",
    "power_w": "mean power, W",
}
COLOURS = {"ok": "#3b6fb6", "oom": "#d1495b", "timeout": "#edae49", "crash": "#6b2d5c"}


def coverage_figure(coverage: Mapping[str, Any]) -> Any:
    """Return a heat map of rows by family and decade of size; zero is white."""
    from plotly import graph_objects as go

    counts = [[n or None for n in row] for row in coverage["rows"]]
    figure = go.Figure(
        go.Heatmap(
            z=counts,
            x=[f"10^{decade}" for decade in coverage["decades"]],
            y=coverage["families"],
            text=[[str(n or "") for n in row] for row in coverage["rows"]],
            texttemplate="%{text}",
            colorscale="Blues",
            colorbar={"title": "rows"},
            hovertemplate="%{y}, from %{x}: %{z} rows<extra></extra>",
        )
    )
    figure.update_xaxes(title=f"{coverage['size']}, from", type="category")
    figure.update_yaxes(type="category", autorange="reversed")
    return apply_style(figure, 140 + 24 * len(coverage["families"]))


def counts_figure(rows: pd.DataFrame) -> Any:
    """Return a bar chart of rows by family and status."""
    from plotly import graph_objects as go

    counts = rows.groupby(["family", "status"]).size().unstack(fill_value=0).sort_index()
    figure = go.Figure(
        [
            go.Bar(
                y=[str(family) for family in counts.index],
                x=counts[status].tolist(),
                name=str(status),
                orientation="h",
                marker_color=COLOURS.get(str(status), OTHER),
            )
            for status in sorted(counts.columns, key=lambda status: status != "ok")
        ]
    )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="rows")
    figure.update_yaxes(type="category", autorange="reversed")
    return apply_style(figure, 140 + 20 * len(counts))


def distribution_figure(rows: pd.DataFrame, target: str) -> Any:
    """Return the distribution of a measured target by family, on a logarithmic axis."""
    from plotly import graph_objects as go

    known = rows[rows[target] > 0]
    figure = go.Figure(
        [
            go.Box(
                x=part[target].tolist(),
                name=str(family),
                orientation="h",
                boxpoints="outliers",
                marker={"size": 3, "color": COLOURS["ok"]},
                line={"width": 1},
                showlegend=False,
            )
            for family, part in known.groupby("family")
        ]
    )
    figure.update_xaxes(title=f"measured {LABELS[target]}", **log_ticks(known[target]))
    figure.update_yaxes(type="category", autorange="reversed")
    return apply_style(figure, 140 + 20 * known["family"].nunique())


def prediction_figure(points: list[PredictedRow]) -> Any:
    """Return a log-log plot of predicted against measured values with intervals."""
    from plotly import graph_objects as go

    target = points[0].target
    ends = [f([v for p in points for v in (p.measured, p.predicted)]) for f in (min, max)]
    figure = go.Figure(go.Scatter(x=ends, y=ends, mode="lines", name="equal", line_color=OTHER))
    for family in sorted({point.family for point in points}):
        mine = [point for point in points if point.family == family]
        figure.add_scatter(
            x=[p.measured for p in mine],
            y=[p.predicted for p in mine],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [max(p.high - p.predicted, 0) for p in mine],
                "arrayminus": [max(p.predicted - p.low, 0) for p in mine],
                "thickness": 0.6,
                "width": 0,
            },
            text=[f"{p.model}, batch {p.batch}, {p.ape:.1f} % off" for p in mine],
            hovertemplate="%{text}<br>measured %{x:.4g}, predicted %{y:.4g}<extra></extra>",
            mode="markers",
            marker={"size": 5, "opacity": 0.7},
            name=family,
        )
    heights = [end for p in points for end in (p.low, p.high)]
    figure.update_xaxes(title=f"measured {LABELS[target]}", **log_ticks(ends))
    figure.update_yaxes(title=f"predicted {LABELS[target]}", **log_ticks(heights))
    return apply_style(figure, 520)


def _measured_targets(rows: pd.DataFrame) -> list[str]:
    """Return the targets that at least one row has measured."""
    return [target for target in DISTRIBUTED if (rows[target] > 0).any()]


# Tables of the terminal.


def tables(report: CollectedReport) -> Iterator[Any]:
    """Yield a headline, then distributions, noise floor, failures and errors."""
    figures = report.figures
    yield shown(report.title)
    yield (
        f"{figures['rows']:,} rows, {figures['rows_used']:,} usable, "
        f"{figures['families']} families, {figures['architectures']:,} architectures, "
        f"{len(figures['campaigns'])} campaigns, {figures['days']} days"
    )
    table = _terminal_table("measured", "n", "5 %", "median", "95 %")
    absent = []
    for target, found in figures["distributions"].items():
        if "absent" in found:
            table.add_row(shown(target), "0", "–", "–", "–")
            absent.append(f"{target} absent: {found['absent']}")
        else:
            values = (show(found[key]) for key in ("p05", "median", "p95"))
            table.add_row(shown(target), f"{found['n']:,}", *values)
    yield table
    yield from map(shown, absent)
    table = _terminal_table("noise floor", "configurations", "rows", "median %", "p95 %", "days")
    for floor in figures["noise_floor"]:
        if floor["family"] == "all":
            spread = (f"{floor[key]:.2f}" for key in ("median_percent", "p95_percent"))
            counts = (str(floor[key]) for key in ("configurations", "rows"))
            table.add_row(floor["target"], *counts, *spread, str(floor["days"]))
    yield table
    for target, reason in figures["noise_floor_absent"].items():
        yield shown(f"noise floor of {target} absent: {reason}")
    table = _terminal_table("left out", "rows")
    for reason, n in figures["left_out"].items():
        table.add_row(shown(reason), f"{n:,}")
    yield table
    yield from _error_tables(report)


def _error_tables(report: CollectedReport) -> Iterator[Any]:
    compared = report.compared
    if compared.points:
        table = _terminal_table(
            "predicted against measured", "n", "median APE %", "MAPE %", "inside"
        )
        table.title = shown(compared.checkpoint, "table.title")
        for line in compared.errors():
            if line["family"] == "all":
                errors = (f"{line[key]:.1f}" for key in ("median_ape", "mape"))
                table.add_row(line["target"], str(line["n"]), *errors, f"{line['coverage']:.0%}")
        yield table
    yield from map(shown, compared.remarks)
    for reason, n in compared.absent.items():
        yield shown(f"not predicted ({n} rows): {reason}")


def _terminal_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold", max_width=PIPE_FOLD)
    return table
