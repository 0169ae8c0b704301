"""Charts as one offline page, by plotly."""

from __future__ import annotations

from typing import Any

from dippm.base.printable import printable
from dippm.show.report.plotted import apply_style, escape_tags, figure_markup, render
from dippm.show.report.runs.charts import Bars, Chart, DrawnCharts, Heat, Lines, Parallel

TEMPLATE = """
{% for figure in figures %}{{ figure }}{% endfor %}
{% if absent %}<h2>Absent</h2>
<ul>{% for run, type, reason in absent %}
<li>{{ type }} of {{ run }}: {{ reason }}</li>
{% endfor %}</ul>
{% endif %}
"""


def html_page(found: DrawnCharts, title: str) -> str:
    """Return the page.

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
        figure.add_trace(_parallel(chart))
    figure.update_layout(title=escape_tags(chart.title), showlegend=True)
    return figure


def _parallel(chart: Parallel) -> Any:
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
