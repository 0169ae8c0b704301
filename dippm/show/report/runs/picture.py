"""Drawings of charts: a picture by matplotlib, and an offline page by plotly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dippm.base.printable import printable
from dippm.errors import DippmError
from dippm.show.report.plotted import apply_style, escape_tags, figure_markup, render
from dippm.show.report.runs.charts import Bars, Chart, DrawnCharts, Heat, Lines, Parallel

# Pictures.


FORMATS = (".png", ".pdf", ".svg", ".jpg", ".jpeg")
MOST_NAMED = 30
"""Largest number of lines in a legend; more would hide the chart."""


def write_picture(drawn: DrawnCharts, path: Path) -> None:
    """Write a picture with all charts stacked.

    Raises:
        DippmError: if the file cannot be written, or has another suffix.
    """
    if path.suffix.casefold() not in FORMATS:
        raise DippmError(f"{path} is no picture", f"End its name with {', '.join(FORMATS)}.")
    from matplotlib.figure import Figure

    count = max(1, len(drawn.charts))
    figure = Figure(figsize=(9, 4 * count + 0.2 * len(drawn.absent)), layout="constrained")
    for place, chart in enumerate(drawn.charts, 1):
        axes = figure.add_subplot(count, 1, place)
        axes.set_title(_safe(chart.title))
        _draw(axes, chart)
    if drawn.absent:
        notes = [f"{type_} of {run}: {reason}" for run, type_, reason in drawn.absent]
        figure.supxlabel(_safe("absent: " + "\n".join(notes)), fontsize=8, color="#666666")
    try:
        figure.savefig(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DippmError(f"cannot write {path}: {reason}", "Choose another place.") from error


def _safe(text: str) -> str:
    """Escape dollar signs, which start formulas in matplotlib."""
    return printable(text, keep="\n").replace("$", r"\$")


def _draw(axes: Any, chart: Chart) -> None:
    if isinstance(chart, Lines):
        _lines(axes, chart)
    elif isinstance(chart, Bars):
        _bars(axes, chart)
    elif isinstance(chart, Heat):
        _heat(axes, chart)
    else:
        _parallel(axes, chart)


def _lines(axes: Any, chart: Lines) -> None:
    for line in (line.thinned() for line in chart.lines):
        label = _safe(f"\u200b{line.name}")
        marker = "o" if len(line.x) < 50 else None
        (drawn,) = axes.plot(line.x, line.y, label=label, marker=marker)
        if line.low is not None:
            axes.fill_between(line.x, line.low, line.high, color=drawn.get_color(), alpha=0.2)
    for level in chart.levels:
        label = _safe(f"\u200b{level.name} of {level.run}")
        axes.axhline(level.value, label=label, color="#555555", linestyle="--")
        if level.low is not None:
            axes.axhspan(level.low, level.high, color="#555555", alpha=0.15)
    names = list(dict.fromkeys(stretch.name for stretch in chart.stretches))
    for place, name in enumerate(names):
        found = [(o.start, o.end - o.start) for o in chart.stretches if o.name == name]
        axes.broken_barh(
            found, (0, 1), color=f"C{place + 3}", alpha=0.15, label=_safe(f"\u200b{name}"),
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
    axes.set_xlabel(_safe(chart.x_label))
    axes.set_ylabel(_safe(chart.y_label))
    if len(chart.lines) + len(names) <= MOST_NAMED:
        axes.legend()


def _bars(axes: Any, chart: Bars) -> None:
    names = list(dict.fromkeys(bar.name for bar in chart.bars))
    runs = list(dict.fromkeys(bar.run for bar in chart.bars))
    for place, run in enumerate(runs):
        bars = [bar for bar in chart.bars if bar.run == run]
        at = [
            names.index(bar.name) + (place - (len(runs) - 1) / 2) * 0.8 / len(runs) for bar in bars
        ]
        heights = [bar.mean for bar in bars]
        ranges = [[b.mean - b.low for b in bars], [b.high - b.mean for b in bars]]
        axes.bar(at, heights, 0.8 / len(runs), yerr=ranges, capsize=3, label=_safe(run))
    axes.set_xticks(range(len(names)), [_safe(name) for name in names])
    axes.set_ylabel(_safe(chart.y_label))
    axes.legend()


def _heat(axes: Any, chart: Heat) -> None:
    image = axes.imshow(chart.matrix, cmap="Blues")
    axes.figure.colorbar(image, ax=axes)
    words = [_safe(label) for label in chart.labels]
    axes.set_xticks(range(len(words)), words)
    axes.set_yticks(range(len(words)), words)
    for row, numbers in enumerate(chart.matrix):
        for column, number in enumerate(numbers):
            axes.text(column, row, f"{number:g}", ha="center", va="center")


def _parallel(axes: Any, chart: Parallel) -> None:
    import numpy as np

    scaled = []
    for axis in range(len(chart.axes)):
        places, ticks = chart.scale(axis)
        at = np.array(places)
        low = min((place for place, _ in ticks), default=0.0)
        high = max((place for place, _ in ticks), default=0.0)
        whole = (high - low) or 1.0
        scaled.append((at - low) / whole)
        for place, word in ticks:
            axes.annotate(_safe(word), (axis, (place - low) / whole), fontsize=8)
    colours = {
        run: f"C{place}" for place, run in enumerate(dict.fromkeys(r for r, _ in chart.rows))
    }
    for row, (run, _) in enumerate(chart.rows):
        axes.plot([values[row] for values in scaled], color=colours[run])
    axes.set_xticks(range(len(chart.axes)), [_safe(axis) for axis in chart.axes])
    axes.set_yticks([])


# Pages.


TEMPLATE = """
{% for figure in figures %}{{ figure }}{% endfor %}
{% if absent %}<h2>Absent</h2>
<ul>{% for run, type, reason in absent %}
<li>{{ type }} of {{ run }}: {{ reason }}</li>
{% endfor %}</ul>
{% endif %}
"""


def html_page(found: DrawnCharts, title: str) -> str:
    """Return the page of charts as text.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    from markupsafe import Markup

    figures = [Markup(figure_markup(apply_style(figure_of(chart), 420))) for chart in found.charts]
    absent = [tuple(printable(text) for text in row) for row in found.absent]
    return render(TEMPLATE, title=printable(title), figures=figures, absent=absent)


def figure_of(chart: Chart) -> Any:
    """Return a plotly figure of a chart."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    if isinstance(chart, Lines):
        for line in (line.thinned() for line in chart.lines):
            mode = "lines+markers" if len(line.x) < 50 else "lines"
            figure.add_scatter(x=line.x, y=line.y, name=escape_tags(line.name), mode=mode)
        figure.update_xaxes(title=escape_tags(chart.x_label))
        figure.update_yaxes(title=escape_tags(chart.y_label))
    elif isinstance(chart, Bars):
        for run in dict.fromkeys(bar.run for bar in chart.bars):
            bars = [bar for bar in chart.bars if bar.run == run]
            figure.add_bar(
                x=[escape_tags(bar.name) for bar in bars],
                y=[bar.mean for bar in bars],
                error_y={
                    "array": [bar.high - bar.mean for bar in bars],
                    "arrayminus": [bar.mean - bar.low for bar in bars],
                },
                customdata=[bar.n for bar in bars],
                hovertemplate="%{y} (n = %{customdata})",
                name=escape_tags(run),
            )
        figure.update_yaxes(title=escape_tags(chart.y_label))
    elif isinstance(chart, Heat):
        words = [escape_tags(label) for label in chart.labels]
        places = list(range(len(chart.matrix)))
        ticks = {"tickvals": places, "ticktext": words}
        figure.add_heatmap(
            z=chart.matrix, x=places, y=places, texttemplate="%{z}", colorscale="Blues"
        )
        figure.update_xaxes(**ticks)
        figure.update_yaxes(**ticks, autorange="reversed")
    else:
        figure.add_trace(_parallel_trace(chart))
    figure.update_layout(title=escape_tags(chart.title), showlegend=True)
    return figure


def _parallel_trace(chart: Parallel) -> Any:
    from plotly import graph_objects

    runs = list(dict.fromkeys(run for run, _ in chart.rows))
    dimensions = [
        {"label": "run", "values": [runs.index(run) for run, _ in chart.rows],
         "tickvals": list(range(len(runs))), "ticktext": [escape_tags(run) for run in runs]}
    ]  # fmt: skip
    for axis, name in enumerate(chart.axes):
        places, ticks = chart.scale(axis)
        own: dict[str, Any] = {"label": escape_tags(name), "values": places}
        if any(isinstance(row[axis], str) for _, row in chart.rows):
            own |= {
                "tickvals": [t for t, _ in ticks],
                "ticktext": [escape_tags(w) for _, w in ticks],
            }
        dimensions.append(own)
    colours = [runs.index(run) for run, _ in chart.rows]
    return graph_objects.Parcoords(
        line={"color": colours, "colorscale": "Viridis"}, dimensions=dimensions
    )
