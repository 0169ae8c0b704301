"""The page of one run: everything about it, with reasons for absent values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.errors import DippmError
from dippm.estimate.models.targets import UNITS
from dippm.estimate.prediction import LABELS
from dippm.runs.store.record import Span, Value
from dippm.runs.tracking.warner import WARNING
from dippm.show.ui.library import Library
from dippm.show.ui.opened import RunRecord
from dippm.show.ui.page.visits import FileDownload, Name, OpenView, checked, in_turn
from dippm.show.ui.selection import ListedRun
from dippm.show.ui.streams import is_number

MOST_ROWS = 500
"""Largest number of rows of a table; the number of further rows is shown below it."""
MOST_MATRIX = 30
MOST_TEXT = 4000
LARGEST_ARTIFACT_BYTES = 64 * 2**20


def answer_run(app: Dash, library: Library) -> None:
    """Register the callbacks of a run's page and of its downloads."""

    @app.callback(
        Output("run", "children"),
        Output("shown", "data"),
        Input("view", "data"),
        Input("version", "data"),
        State("shown", "data"),
        prevent_initial_call=True,
    )
    @checked
    def _show(viewed: OpenView | None, _: int, before: Name | None) -> tuple[Any, Any]:
        if viewed is None or viewed.name != "run":
            return no_update, no_update
        uuid = viewed.run
        listed = next((run for run in library.runs() if run.uuid == uuid), None)
        record, failure = library.record(uuid), library.failures([uuid]).get(uuid)
        state = hashlib.sha256(repr((uuid, listed, failure, record)).encode()).hexdigest()
        if state == before:
            return no_update, no_update
        return _page(uuid, listed, record, failure), state

    @app.callback(
        Output("download", "data", allow_duplicate=True),
        Output("answered", "data"),
        Input("fetched", "data"),
        prevent_initial_call=True,
    )
    @checked
    @in_turn
    def _fetch(fetched: FileDownload | None) -> tuple[Any, Any]:
        if fetched is None:
            return no_update, no_update
        try:
            path = library.artifact(fetched.run, fetched.name)
        except DippmError as error:
            return no_update, str(error)
        if path is None or not path.is_file():
            return no_update, "the run is not in the store yet: its files lie in its folder"
        if path.stat().st_size > LARGEST_ARTIFACT_BYTES:
            size = f"{path.stat().st_size / 2**20:,.0f} MiB"
            return no_update, f"{printable(fetched.name)} has {size}: fetch it from the store"
        return dcc.send_bytes(path.read_bytes(), path.name), f"took {printable(fetched.name)} along"


def _page(
    uuid: str, listed: ListedRun | None, record: RunRecord | None, failure: str | None
) -> Any:
    if record is None:
        text = f"Reading run {printable(uuid[:32])} …"
        if failure:
            text = f"Run {printable(uuid[:32])} cannot be shown: {printable(failure)}"
        return html.Div(html.P(text), className="panel")
    start = record.start
    status = listed.status if listed else record.end.status if record.end else "running"
    head = html.Div(
        className="panel row",
        children=[
            html.H2(printable(start.name) or uuid[:8]),
            html.Span(status, className=f"badge {status}"),
            html.A("Charts of this run", href=f"#view=charts&runs={uuid}"),
        ],
    )
    tags = {name: text for name, text in start.tags.items() if not name.startswith(WARNING)}
    warnings = [_cut(text) for name, text in start.tags.items() if name not in tags]
    left = [
        *([_panel("Warnings", [html.P(text, className="warning") for text in warnings])]
          * bool(warnings)),
        _about(record, status, listed),
        _pairs("Parameters", start.params),
        _pairs("Tags", tags),
        _artifacts(record.artifacts),
        _pairs("Environment", start.environment),
    ]  # fmt: skip
    right = [
        _comparison(record),
        _summaries(record),
        _reported_section(record.values),
        *_matrices(record.values),
        *_others(record.values),
        _spans(record.spans),
        *(
            [_panel("Trouble", [html.P(printable(o)) for o in record.remarks])]
            * bool(record.remarks)
        ),
    ]
    return [
        head,
        html.Div([html.Div(left, className="stack"), html.Div(right, className="stack")],
                 className="columns"),
    ]  # fmt: skip


def _panel(title: str, children: list[Any]) -> html.Section:
    named = {"aria-label": title, "role": "region"}
    if any(isinstance(child, html.Table) for child in children):
        named["tabIndex"] = "0"  # it may be wider than the screen, and has to scroll by keyboard
    return html.Section([html.H3(title), *children], className="panel", **named)


def head_of(text: str, look: str = "") -> html.Th | html.Td:
    """Return the header cell of a column; an empty corner is a plain cell."""
    return html.Th(text, scope="col", className=look) if text else html.Td("")


def table_of(
    head: Sequence[str], rows: Iterable[Sequence[Any]], numeric: Sequence[int] = ()
) -> html.Table:
    """Return a table; the first cell of each row is its header.

    Args:
        head: headers of the columns.
        rows: rows of texts or Dash components.
        numeric: right-aligned columns.
    """

    def look(place: int) -> str:
        return "number" if place in numeric else ""

    return html.Table(
        [
            html.Thead(html.Tr([head_of(o, look(n)) for n, o in enumerate(head)])),
            html.Tbody(
                [
                    html.Tr(
                        [
                            html.Th(row[0], scope="row"),
                            *(html.Td(o, className=look(n)) for n, o in enumerate(row) if n),
                        ]
                    )
                    for row in rows
                ]
            ),
        ]
    )


def _pairs(title: str, pairs: Mapping[str, Any]) -> html.Section:
    if not pairs:
        return _panel(title, [html.P("none were recorded", className="absent")])
    rows = [(printable(name), _cut(str(pairs[name]))) for name in sorted(pairs)[:MOST_ROWS]]
    return _panel(title, [table_of(("name", "value"), rows), *_left_out(len(pairs))])


def _about(record: RunRecord, status: str, listed: ListedRun | None) -> html.Section:
    start, end = record.start, record.end
    if end is not None:
        exit_code = "absent: a block has none" if end.exit_code is None else str(end.exit_code)
        ended, seconds = _clock(end.at.wall_ns), (end.at.monotonic_ns - start.at.monotonic_ns) / 1e9
    else:
        exit_code = "absent: it goes on" if status == "running" else "absent: not recorded"
        ended, seconds = exit_code, listed.seconds if listed else 0.0
    rows = [
        ("uuid", start.uuid),
        ("status", status),
        ("exit code", exit_code),
        *([("error", _cut(end.error))] if end is not None and end.error else []),
        ("started", _clock(start.at.wall_ns)),
        ("ended", ended),
        ("duration", f"{show(seconds)} s"),
        ("experiment", printable(start.experiment) or "default"),
        ("workload", printable(start.group) or "none"),
        ("host", printable(start.host) or "absent: it was not recorded"),
        ("folder", printable(start.folder) or "absent: it was not recorded"),
        *([("description", _cut(start.description))] if start.description else []),
    ]
    words = " ".join(start.command)
    command: Any = (
        html.Pre(_cut(words))
        if words
        else html.P("none: a block inside a program", className="absent")
    )
    return _panel("Run", [table_of(("what", "value"), rows), html.H3("Command"), command])


def _comparison(record: RunRecord) -> html.Section:
    title = "Prediction beside measurement"
    held, foretold = record.comparison, record.start.prediction
    if held is not None:
        rows = []
        for target, one in _mappings(held.get("compared")):
            unit = UNITS.get(target, "")
            error = one.get("error")
            rows.append(
                (
                    f"{LABELS.get(target, target)} ({unit})" if unit else printable(target),
                    _number(one.get("predicted")),
                    f"{_number(one.get('low'))} – {_number(one.get('high'))}"
                    if one.get("low") is not None
                    else "",
                    _number(one.get("measured")),
                    f"{error:+.1%}" if isinstance(error, int | float) else "",
                    printable(f"{one.get('verdict', '')} {one.get('reason', '')}".strip()),
                )
            )
        head = ("of a step", "predicted", "interval", "measured", "error", "verdict")
        return _panel(
            title,
            [
                html.P(["verdict: ", html.Strong(printable(str(held.get("verdict", ""))))]),
                table_of(head, rows, (1, 2, 3, 4)),
                html.P(printable(str(held.get("title", ""))), className="note"),
                html.P(printable(f"noise: {held.get('noise', '')}"), className="note"),
            ],
        )
    if foretold is None:
        return _panel(
            title,
            [
                html.P("absent: it was started without a prediction.", className="absent"),
                html.Pre("dippm run --model FILE --batch 32 -- CMD"),
            ],
        )
    intervals = foretold.get("intervals")
    spread = dict(_mappings(intervals))
    predicted = [
        (
            f"{label} ({UNITS.get(target, '')})",
            _number(foretold.get(target)),
            f"{_number(spread[target].get('low'))} – {_number(spread[target].get('high'))}"
            if target in spread
            else "",
        )
        for target, label in LABELS.items()
        if isinstance(foretold.get(target), int | float)
    ]
    reason = record.comparison_reason or "not compared yet: `dippm compare-run` does it"
    return _panel(
        title,
        [
            table_of(("of a step", "predicted", "interval"), predicted, (1, 2)),
            html.P(printable(f"measured: absent: {reason}"), className="absent"),
        ],
    )


def _summaries(record: RunRecord) -> html.Section:
    if not record.summaries:
        return _panel("Summaries", [html.P("absent: nothing was sampled", className="absent")])
    head = ("series", "unit", "mean", "p50", "p95", "max", "integral", "n", "absent")
    rows = [
        (
            printable(name),
            printable(one.unit) + ("/s" if one.counter else ""),
            *(_number(value) for value in (one.mean, one.p50, one.p95, one.max, one.integral)),
            f"{one.n:,}",
            _cut(one.reason),
        )
        for name, one in sorted(record.summaries.items())[:MOST_ROWS]
    ]
    note = "Of a counter all numbers are those of its rate; its integral is how much it grew."
    return _panel(
        "Summaries",
        [
            table_of(head, rows, (2, 3, 4, 5, 6, 7)),
            *_left_out(len(record.summaries)),
            html.P(note, className="note"),
        ],
    )


def _reported_section(values: Sequence[Value]) -> html.Section:
    last: dict[str, list[Value]] = {}
    for value in values:
        if is_number(value):
            last.setdefault(value.name, []).append(value)
    if not last:
        return _panel("Told", [html.P("it told no number", className="absent")])
    rows = [
        (
            printable(name),
            show(float(of[-1].data)),
            show(min(float(o.data) for o in of)),
            show(max(float(o.data) for o in of)),
            printable(of[-1].unit),
            "" if of[-1].step is None else f"{of[-1].step:,}",
            f"{len(of):,}",
        )
        for name, of in sorted(last.items())[:MOST_ROWS]
    ]
    head = ("name", "last", "least", "greatest", "unit", "step", "n")
    return _panel("Told", [table_of(head, rows, (1, 2, 3, 5, 6)), *_left_out(len(last))])


def _matrices(values: Sequence[Value]) -> list[html.Section]:
    """Return confusion matrices: rows are true classes, columns predicted ones."""
    found = []
    for value in values:
        matrix = value.data.get("matrix") if isinstance(value.data, Mapping) else None
        if value.kind != "confusion_matrix" or not isinstance(matrix, list):
            continue
        title = f"Confusion matrix: {printable(value.name)}"
        rows = [row for row in matrix if isinstance(row, list)]
        if len(rows) > MOST_MATRIX:
            text = f"{len(rows)} classes are too many for a table: `dippm plot` draws them"
            found.append(_panel(title, [html.P(text, className="absent")]))
            continue
        given = value.data.get("labels") or range(len(rows))
        labels = [printable(str(label)) for label in given]
        labels += [str(place) for place in range(len(labels), len(rows))]
        numbers = [n for row in rows for n in row if isinstance(n, int | float)]
        most = max(numbers, default=0) or 1
        body = [
            html.Tr([html.Th(labels[place], scope="row"), *(_heat(n, most) for n in row)])
            for place, row in enumerate(rows)
        ]
        head = html.Tr([html.Td(""), *(html.Th(o, scope="col") for o in labels)])
        found.append(_panel(title, [html.Table([html.Thead(head), html.Tbody(body)])]))
    return found


def _heat(number: Any, most: float) -> html.Td:
    if not isinstance(number, int | float):
        return html.Td(_cut(str(number)))
    percent = round(45 * max(0.0, number) / most)  # keeps the text readable
    shade = f"color-mix(in srgb, var(--act) {percent}%, var(--card))"
    return html.Td(f"{number:g}", className="heat", style={"background": shade})


OTHERS = {
    "hyperparameters": "Hyper-parameters",
    "loss": "Loss",
    "time_to_accuracy": "Time to accuracy",
    "timed_time_to_accuracy": "Timed time to accuracy",
}


def _others(values: Sequence[Value]) -> list[html.Section]:
    """Return other reported values as they are."""
    found = []
    for value in values:
        if value.kind not in OTHERS:
            continue
        title = f"{OTHERS[value.kind]}: {printable(value.name)}"
        rows = value.data if isinstance(value.data, list) else [value.data]
        if rows and all(isinstance(row, Mapping) for row in rows):
            names = list(dict.fromkeys(str(name) for row in rows for name in row))[:50]
            cells = [
                (str(number), *(_cut(str(row.get(name, ""))) for name in names))
                for number, row in enumerate(rows[:MOST_ROWS], 1)
            ]
            head = ("", *(printable(name) for name in names))
            found.append(_panel(title, [table_of(head, cells), *_left_out(len(rows))]))
        else:
            found.append(_panel(title, [html.Pre(_cut(json.dumps(value.data, default=str)))]))
    return found[:50]


def _spans(spans: Sequence[Span]) -> html.Section:
    if not spans:
        return _panel("Spans", [html.P("it told no span", className="absent")])
    by_name: dict[str, list[Span]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    rows = []
    for name, of in list(by_name.items())[:MOST_ROWS]:
        took_ms = [(o.end_ns - o.start_ns) / 1e6 for o in of if o.end_ns is not None]
        failed = [span for span in of if span.status == "failed"]
        errors = ", ".join(sorted({span.error for span in failed if span.error}))
        rows.append(
            (
                _cut(name),
                f"{len(of):,}",
                show(sum(took_ms) / len(took_ms)) if took_ms else "",
                show(max(took_ms)) if took_ms else "",
                show(sum(took_ms)) if took_ms else "",
                printable(f"{len(failed):,} {errors}".strip()) if failed else "",
            )
        )
    head = ("name", "n", "mean (ms)", "max (ms)", "total (ms)", "failed")
    return _panel("Spans", [table_of(head, rows, (1, 2, 3, 4)), *_left_out(len(by_name))])


def _artifacts(names: Sequence[str]) -> html.Section:
    if not names:
        return _panel("Artifacts", [html.P("it told of no file", className="absent")])
    rows = [
        html.Li(
            [
                html.Button(
                    "Take along",
                    type="button",
                    **{"data-artifact": name, "aria-label": f"take {printable(name)} along"},
                ),
                f" {printable(name)}",
            ]
        )
        for name in names[:MOST_ROWS]
    ]
    return _panel("Artifacts", [html.Ul(rows), *_left_out(len(names))])


def _left_out(count: int) -> list[html.P]:
    if count <= MOST_ROWS:
        return []
    return [html.P(f"{count - MOST_ROWS:,} more are left out", className="note")]


def _mappings(held: Any) -> list[tuple[str, Mapping[str, Any]]]:
    pairs = held.items() if isinstance(held, Mapping) else ()
    return [(str(name), one) for name, one in pairs if isinstance(one, Mapping)]


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return "absent"
    return show(float(value))


def _clock(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _cut(text: str) -> str:
    text = printable(text[:MOST_TEXT], keep="\n")
    return f"{text}…" if len(text) >= MOST_TEXT else text
