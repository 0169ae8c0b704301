"""The plots of the page, as plotly figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dippm.show.report.collected.predictions import PredictedRow
from dippm.show.report.collected.summary import DISTRIBUTED
from dippm.show.report.plotted import OTHER, apply_style, log_ticks

if TYPE_CHECKING:
    import pandas as pd

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


def measured_targets(rows: pd.DataFrame) -> list[str]:
    """Return the targets that at least one row has."""
    return [target for target in DISTRIBUTED if (rows[target] > 0).any()]
