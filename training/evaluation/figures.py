"""The plots of the page of held-out errors, as plotly figures; every title names its split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dippm.show.report.plotted import OTHER, apply_style
from training.evaluation.error_lines import log_error, split_name
from training.evaluation.held_out import LEVELS, half_width

BLUE, RED = "#3b6fb6", "#d1495b"
BOUNDS = {"compute": "#d1495b", "memory": "#3b6fb6", "host": "#edae49"}
SYMBOLS = ("diamond-open", "square-open", "triangle-up-open", "circle-open", "x-thin-open")
MOST_FAMILIES = 40
MOST_POINTS = 3000
FEWEST_COVERED = 20
QUANTILES = {"lowerfence": 0.05, "q1": 0.25, "median": 0.5, "q3": 0.75, "upperfence": 0.95}
RATIO = "predicted / measured"
RATIO_AXIS = {
    "type": "log",
    "tickvals": [0.1, 0.2, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 5, 10],
    "gridcolor": "#eee",
}


def overview_figure(lines: Sequence[Mapping[str, Any]]) -> Any:
    """Return the MAPE of each question and those of baselines, on a logarithmic axis."""
    from plotly import graph_objects as go

    names = [f"{line['question']} · {line['gpu']} ({line['split']})" for line in lines]
    ends = [tuple(map(float, line["mape_ci95"].split(" to "))) for line in lines]
    mape = [line["mape"] for line in lines]
    figure = go.Figure()
    baselines = dict.fromkeys(name for line in lines for name in line["baselines"])
    for symbol, baseline in zip(SYMBOLS * 9, baselines, strict=False):
        figure.add_scatter(
            x=[line["baselines"].get(baseline) for line in lines],
            y=names,
            mode="markers",
            marker={"symbol": symbol, "color": OTHER, "size": 8, "line": {"width": 1.5}},
            name=baseline,
        )
    figure.add_scatter(
        x=mape,
        y=names,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - value for (_, high), value in zip(ends, mape, strict=True)],
            "arrayminus": [value - low for (low, _), value in zip(ends, mape, strict=True)],
        },
        mode="markers",
        marker={"color": BLUE, "size": 10},
        name="DIPPM, 95 % interval",
    )
    figure.update_xaxes(title="MAPE, %", type="log", tickvals=[2, 5, 10, 20, 50, 100, 200, 500])
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    return _titled(figure, 180 + 26 * len(names), "MAPE by question, split in brackets")


def scatter_figure(rows: pd.DataFrame, split: str, table: str) -> Any:
    """Return predicted against measured, coloured by what bounds the model."""
    from plotly import graph_objects as go

    drawn = rows
    if len(rows) > MOST_POINTS:
        drawn = rows.iloc[np.linspace(0, len(rows) - 1, MOST_POINTS).astype(int)]
    both = drawn[["measured_ms", "predicted_ms"]].to_numpy()
    ends = [both.min(), both.max()]
    figure = go.Figure(go.Scatter(x=ends, y=ends, mode="lines", name="equal", line_color=OTHER))
    for bound, colour in BOUNDS.items():
        mine = drawn[drawn["bound"] == bound]
        if mine.empty:
            continue
        figure.add_scatter(
            x=mine["measured_ms"].to_numpy(np.float32),
            y=mine["predicted_ms"].to_numpy(np.float32),
            text=[f"{r.model[:60]}, batch {r.batch}, {r.gpu}" for r in mine.itertuples()],
            hovertemplate="%{text}<br>measured %{x:.4g} ms, predicted %{y:.4g}<extra></extra>",
            mode="markers",
            marker={"size": 5, "opacity": 0.6, "color": colour},
            name=f"{bound} bound",
        )
    figure.update_xaxes(title="measured latency, ms", type="log")
    figure.update_yaxes(title="predicted latency, ms", type="log")
    what = "Predicted and measured"
    if len(drawn) < len(rows):
        what += f" ({len(drawn):,} of the rows drawn)"
    return _titled(figure, 520, what, rows, split, table)


def family_figure(rows: pd.DataFrame, split: str, table: str) -> Any:
    """Return boxes of predicted / measured by family, largest mean error first."""
    from plotly import graph_objects as go

    ape = (rows["predicted_ms"] / rows["measured_ms"] - 1).abs()
    order = ape.groupby(rows["family"]).mean().sort_values(ascending=False).index
    shown = order[:MOST_FAMILIES]
    ratio = np.exp(log_error(rows))
    figure = go.Figure(
        _boxes({f: ratio[rows["family"] == f] for f in shown}, orientation="h", colour=BLUE)
    )
    _line_at_one(figure, "x")
    figure.update_xaxes(title=RATIO, **RATIO_AXIS)
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    what = "By family"
    if len(shown) < len(order):
        what += f", the {len(shown)} of {len(order)} with the largest mean error"
    return _titled(figure, 160 + 20 * len(shown), what, rows, split, table)


def conditions_figure(rows: pd.DataFrame, split: str, table: str) -> Any:
    """Return boxes of predicted / measured by size of the step, by batch and by bound."""
    from plotly.subplots import make_subplots

    size = np.floor(2 * np.log10(rows["gflop"].clip(lower=1e-6))) / 2
    batch = np.floor(np.log2(rows["batch"].clip(lower=1))).astype(int)
    groups = {
        "operations of a step, GFLOP, from": size.map(_decade),
        "batch, from": batch.map(lambda power: f"{2**power}"),
        "bound": rows["bound"],
    }
    orders = [
        [_decade(d) for d in sorted(size.unique())],
        [f"{2**p}" for p in sorted(batch.unique())],
        [b for b in BOUNDS if (rows["bound"] == b).any()],
    ]
    ratio = np.exp(log_error(rows))
    figure = make_subplots(cols=3, shared_yaxes=True, column_widths=[0.45, 0.35, 0.2])
    for col, ((name, key), order) in enumerate(zip(groups.items(), orders, strict=True), 1):
        parts = {value: ratio[key == value] for value in order}
        figure.add_trace(_boxes(parts, orientation="v", colour=BLUE), row=1, col=col)
        _line_at_one(figure, "y", row=1, col=col)
        figure.update_xaxes(title=name, type="category", row=1, col=col)
        figure.update_yaxes(**RATIO_AXIS, row=1, col=col)
    figure.update_yaxes(title=RATIO, row=1, col=1)
    return _titled(figure, 420, "By size, batch and bound", rows, split, table)


def calibration_figure(rows: pd.DataFrame, split: str, table: str) -> Any:
    """Return how many intervals hold by their nominal coverage, and how wide they are."""
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, horizontal_spacing=0.12)
    nominal = [100 * level for level in LEVELS]
    figure.add_scatter(
        x=nominal, y=nominal, mode="lines", line_color=OTHER, name="as promised", row=1, col=1
    )
    parts = {"all": rows, **{f"{b} bound": rows[rows["bound"] == b] for b in BOUNDS}}
    for name, part in parts.items():
        if name != "all" and len(part) < FEWEST_COVERED:
            continue
        error = log_error(part).abs()
        halves = [part[half_width(level)] for level in LEVELS]
        style = {
            "x": nominal,
            "mode": "lines+markers",
            "name": f"{name}, n = {len(part):,}",
            "legendgroup": name,
            "line": {
                "color": BOUNDS.get(name.split()[0], "black"),
                "width": 3 if name == "all" else 1.2,
            },
        }
        held = [100 * float((error <= half).mean()) for half in halves]
        width = [100 * float(np.expm1(half.median())) for half in halves]
        figure.add_scatter(**style, y=held, row=1, col=1)
        figure.add_scatter(**style, y=width, showlegend=False, row=1, col=2)
    figure.update_xaxes(title="nominal coverage, %", tickvals=nominal)
    figure.update_yaxes(title="intervals that held, %", row=1, col=1)
    figure.update_yaxes(title="median half width, %", type="log", row=1, col=2)
    return _titled(figure, 420, "Intervals", rows, split, table)


def _decade(power: float) -> str:
    size = float(f"{10**power:.1g}")
    return f"{size:,.0f}" if size >= 1 else f"{size:g}"


def _boxes(parts: Mapping[str, pd.Series], *, orientation: str, colour: str) -> Any:
    """Return boxes of the middle half with whiskers from 5 to 95 %, made of quantiles alone."""
    from plotly import graph_objects as go

    places = {"y" if orientation == "h" else "x": [str(name) for name in parts]}
    quantiles = {
        name: [float(part.quantile(q)) for part in parts.values()] for name, q in QUANTILES.items()
    }
    return go.Box(
        **places,
        **quantiles,
        orientation=orientation,
        text=[f"n = {len(part):,}" for part in parts.values()],
        line={"width": 1.2, "color": colour},
        showlegend=False,
    )


def _line_at_one(figure: Any, axis: str, **place: int) -> None:
    draw = figure.add_vline if axis == "x" else figure.add_hline
    draw(1.0, line={"color": RED, "width": 1, "dash": "dot"}, **place)


def _titled(
    figure: Any,
    height: int,
    what: str,
    rows: pd.DataFrame | None = None,
    split: str = "",
    table: str = "",
) -> Any:
    if rows is not None:
        what = f"{what} · {split_name(split)} · {table} · n = {len(rows):,}"
    apply_style(figure, height)
    return figure.update_layout(
        title={"text": what, "font": {"size": 14}}, margin={"l": 10, "r": 10, "t": 50, "b": 40}
    )
