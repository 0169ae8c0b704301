"""Explanations and differences as one self-contained page with plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log10
from typing import Any

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.explanation import Difference, Explanation, WhatIf
from dippm.decide.explanation.explanation import ATTRIBUTION, PARTS, UNIT_NAMES, Roofline, is_part
from dippm.estimate.module_tree import MAX_DEPTH, ModuleCost
from dippm.show.report.bars import Bar, bars
from dippm.show.report.explanation import (
    ROWS,
    SHORTEST_SHARE,
    difference_table,
    difference_title,
    explained_table,
    module_table,
)
from dippm.show.report.plotted import (
    apply_style,
    figure_markup,
    log_ticks,
    require_libraries,
    script,
)
from dippm.show.report.predictions import answer_markup
from dippm.show.report.shell import note_list, page, table_markup

COLOURS = {"compute": "#3b6fb6", "memory": "#e0a458", "launch": "#8d99ae", "host": "#d1495b"}
WHOLE, LESS, MORE = "#8d99ae", "#4c956c", "#d1495b"
SHOWN_OPS = 9
"""Kinds of operators with a colour of their own."""


def explanation_page(explanation: Explanation, **_: Any) -> str:
    """Return the page of an explanation: flame chart, roofline plot, tables.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    plots = {"flame": flame_figure(explanation), "roofline": roofline_figure(explanation)}
    notes = [ATTRIBUTION] if "energy_j" not in explanation.absent else []
    notes += [f"{name} not available: {why}" for name, why in explanation.absent.items()]
    modules = module_table(explanation, MAX_DEPTH)
    operators = explained_table(explanation, len(explanation.operators))
    memory = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{show(value)} MB</td></tr>'
        for name, value in explanation.memory().items()
    )
    body = (
        answer_markup(explanation.prediction)
        + "<h2>Predicted time by module</h2><p>Width is time; colour is what limits it: "
        + ", ".join(f'<span style="color:{c}">■</span> {n}' for n, c in COLOURS.items())
        + ".</p>"
        + figure_markup(plots["flame"], "flame")
        + "<h2>Roofline</h2><p>Each point is an operator: operations per byte, and operations over "
        "its predicted time. Lines are the device's peaks.</p>"
        + figure_markup(plots["roofline"], "roofline")
        + f'<h2>Memory</h2><div class="wide"><table>{memory}</table></div>'
        + note_list(notes)
        + f"<h2>By module</h2>{table_markup(modules, typed=True)}"
        + f"<h2>By operator</h2>{table_markup(operators)}"
    )
    title = f"{explanation.prediction.title} · explained"
    return page(title, body, explanation.to_dict(), script=script())


def difference_page(difference: Difference, *, depth: int | None = None, **_: Any) -> str:
    """Return the page of a difference: a waterfall and its table.

    Args:
        difference: difference of two explanations.
        depth: leading names of a module's path that are kept; None keeps all.

    Raises:
        ReportNotInstalledError: if plotly or jinja2 is missing.
    """
    require_libraries()
    table = difference_table(difference, depth, ROWS)
    body = (
        figure_markup(waterfall_figure(difference, depth), "waterfall")
        + table_markup(table, typed=True)
        + note_list(table.caption.split("\n"))
    )
    title = f"{difference_title(difference)} · difference"
    return page(title, body, difference.to_dict(depth), script=script())


def what_if_bars(found: WhatIf) -> str:
    """Return bars of the time of a batch for the baseline and after each change."""
    base = found.baseline.latency_ms
    made = [Bar("as asked", base, _said(base), limit=base)]
    made += [
        Bar(row["change"], row["latency_ms"], _said(row["latency_ms"]), limit=base)
        for row in found.rows()
        if row["reason"] is None
    ]
    return bars("time of a batch, ms", made, limit="as asked")


def _said(time_ms: float | None) -> str:
    return "–" if time_ms is None else f"{show(time_ms)} ms"


def flame_figure(explanation: Explanation) -> Any:
    """Return an icicle chart of the modules, with predicted times as widths."""
    import plotly.graph_objects as go

    rows = list(_boxes(explanation))
    columns = (list(column) for column in zip(*rows, strict=True))
    ids, parents, labels, values, colours, texts = columns
    figure = go.Figure(
        go.Icicle(
            ids=ids,
            parents=parents,
            labels=labels,
            values=values,
            branchvalues="remainder",
            sort=False,
            tiling={"orientation": "v"},
            marker={"colors": colours, "line": {"width": 0.5, "color": "white"}},
            hovertext=texts,
            hovertemplate="%{hovertext}<extra></extra>",
            root={"color": "#eceff4"},
        )
    )
    depth = max(identity.count("\n") for identity in ids) + 1
    return apply_style(figure, 60 + 34 * min(depth, 20))


def roofline_figure(explanation: Explanation) -> Any:
    """Return the roofline plot: operations per second over operations per byte."""
    import plotly.graph_objects as go

    found = Roofline.of(explanation)
    figure = go.Figure()
    kinds: dict[str, float] = {}
    for point in found.points:
        kinds[point.op] = kinds.get(point.op, 0.0) + point.time_ms
    named = sorted(kinds, key=lambda op: -kinds[op])[:SHOWN_OPS]
    for name in [*named, *(["others"] if len(kinds) > len(named) else [])]:
        those = [p for p in found.points if (p.op if p.op in named else "others") == name]
        figure.add_scatter(
            x=[p.intensity for p in those],
            y=[p.tflops for p in those],
            mode="markers",
            marker={"size": [6 + 30 * p.share**0.5 for p in those], "opacity": 0.7},
            name=name,
            text=[
                f"{escape(printable(p.path or p.op))}<br>{UNIT_NAMES.get(p.unit, p.unit)}, "
                f"{show(p.time_ms)} ms, {p.share:.1%}"
                for p in those
            ],
            hovertemplate="%{text}<br>%{x:.3g} FLOP/B, %{y:.3g} TFLOP/s<extra></extra>",
        )
    _roofs(figure, found)
    figure.update_xaxes(title="operations per byte moved, FLOP/B")
    figure.update_yaxes(title="TFLOP/s, predicted")
    for axis, values in (("x", [p.intensity for p in found.points]), ("y", _heights(found))):
        figure.update_layout({f"{axis}axis": log_ticks(values)})
    return apply_style(figure, 520)


def _heights(found: Roofline) -> list[float]:
    return [point.tflops for point in found.points] + list(found.peak_tflops.values())


def waterfall_figure(difference: Difference, depth: int | None = None) -> Any:
    """Return a waterfall chart from one latency to the other."""
    import plotly.graph_objects as go

    rows = difference.changes(depth, ROWS)
    names = ["before", *(printable(row.what) for row in rows), "after"]
    changes = [row.change_ms for row in rows]
    figure = go.Figure(
        go.Waterfall(
            x=list(range(len(names))),
            y=[difference.before.latency_ms, *changes, difference.after.latency_ms],
            measure=["absolute", *["relative"] * len(rows), "total"],
            text=[show(difference.before.latency_ms), *(f"{c:+.3g}" for c in changes),
                  show(difference.after.latency_ms)],
            hovertext=[escape(name) for name in names],
            hovertemplate="%{hovertext}: %{text} ms<extra></extra>",
            increasing={"marker": {"color": MORE}},
            decreasing={"marker": {"color": LESS}},
            totals={"marker": {"color": WHOLE}},
        )
    )  # fmt: skip
    labels = {"tickvals": list(range(len(names))), "ticktext": [_short(n) for n in names]}
    figure.update_xaxes(**labels, tickangle=-90)
    figure.update_yaxes(title="predicted latency, ms")
    return apply_style(figure, 520).update_layout(margin={"b": 140})


def _boxes(explanation: Explanation) -> Iterator[tuple[str, str, str, float, str, str]]:
    """Yield id, parent, label, own time, colour and text of each box, the model first."""
    tree = explanation.tree
    yield from _module_boxes(explanation, tree, "", "model")
    for part in explanation.parts:
        if part.time_ms > SHORTEST_SHARE * explanation.latency_ms:
            text = f"{part.name}: {PARTS[part.name]}<br>{show(part.time_ms)} ms, {part.share:.1%}"
            name = f"model\n({part.name})"
            yield name, "model", part.name, part.time_ms, COLOURS["host"], text


def _module_boxes(
    explanation: Explanation, module: ModuleCost, parent: str, identity: str
) -> Iterator[tuple[str, str, str, float, str, str]]:
    time_ms, energy_j = module.time_ms or 0.0, module.energy_j
    bound = explanation.bound_of(module)
    kinds = ", ".join(f"{op} ×{n}" for op, n in list(module.operators.items())[:4])
    name = printable(module.name or "(itself)")
    lines = [f"<b>{escape(printable(module.path) or name)}</b>", escape(printable(kinds))]
    lines.append(f"{show(time_ms)} ms, {module.share or 0.0:.1%}, {bound or 'no kernel'}")
    if energy_j is not None:
        lines.append(f"{show(energy_j)} J")
    lines.append(f"{show(module.weight_bytes / 2**20)} MB of weights")
    own = 0.0 if module.children else time_ms
    colour = COLOURS.get(bound, "#eceff4")
    yield identity, parent, escape(name), own, colour, "<br>".join(lines)
    for position, child in enumerate(module.children):
        if is_part(child):
            continue  # its parts stand for it
        yield from _module_boxes(explanation, child, identity, f"{identity}\n{position}")


def _roofs(figure: Any, found: Roofline) -> None:
    peaks = found.peak_tflops
    if not peaks:
        return
    x = [point.intensity for point in found.points]
    ridges = [peak * 1e3 / found.bandwidth_gb_s for peak in peaks.values()]
    low, high = min(*x, *ridges) / 3, max(*x, *ridges) * 3
    top = max(peaks.values())
    slope = [low, top * 1e3 / found.bandwidth_gb_s]
    _roof(figure, slope, [at * found.bandwidth_gb_s / 1e3 for at in slope],
          f"memory, {show(found.bandwidth_gb_s)} GB/s")  # fmt: skip
    for (unit, peak), ridge in zip(peaks.items(), ridges, strict=True):
        _roof(figure, [ridge, high], [peak, peak], f"{UNIT_NAMES[unit]}, {show(peak)} TFLOP/s")
    figure.update_xaxes(range=[log10(low), log10(high)])


def _roof(figure: Any, x: Sequence[float], y: Sequence[float], name: str) -> None:
    figure.add_scatter(
        x=list(x),
        y=list(y),
        mode="lines",
        line={"color": "#444", "width": 1.5},
        name=name,
        hovertemplate=f"{name}<extra></extra>",
    )


def _short(name: str) -> str:
    return escape(name if len(name) <= 24 else "…" + name[-23:])
