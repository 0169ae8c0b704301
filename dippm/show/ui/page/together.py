"""Comparison of runs: a column each, differing rows first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, State, html, no_update

from dippm.base.printable import printable
from dippm.show.ui.library import Library
from dippm.show.ui.page.lists import runs_of
from dippm.show.ui.page.visits import ChartSettings, OpenView, checked
from dippm.show.ui.selection import ListedRun
from dippm.show.ui.table import (
    METRIC,
    OWN,
    PARAM,
    TAG,
    cell_text,
    column_label,
    known_columns,
    value_of,
)

MOST_RUNS = 20
MOST_ROWS = 300
SECTIONS = {PARAM: "Parameters", TAG: "Tags", METRIC: "Summaries and what was told"}


def answer_comparison(app: Dash, library: Library) -> None:
    """Register the callback of the comparison of runs."""

    @app.callback(
        Output("compare", "children"),
        Output("compared", "data"),
        Input("view", "data"),
        Input("settings", "data"),
        Input("version", "data"),
        State("compared", "data"),
        prevent_initial_call=True,
    )
    @checked
    def _compare(
        viewed: OpenView | None, settings: ChartSettings | None, _: int, before: Any
    ) -> tuple[Any, Any]:
        if viewed is None or viewed.name != "compare":
            return no_update, no_update
        runs = runs_of(library, settings.selected if settings else ())
        state = [
            [run.uuid, run.status, round(run.seconds), len(run.metrics)] for run in runs[:MOST_RUNS]
        ]
        if state == before:
            return no_update, no_update
        return _page(runs), state


def _page(runs: Sequence[ListedRun]) -> Any:
    if len(runs) < 2:
        text = "Select two runs or more in the table, to hold them beside each other."
        return html.Div(html.P(text), className="panel")
    seen = runs[:MOST_RUNS]
    known = known_columns(seen)
    own = _section("Run", [key for key in known if key in OWN], seen, is_open=True)
    parts = [own]
    for begin, title in SECTIONS.items():
        keys = [key for key in known if key.startswith(begin)]
        differ = [key for key in keys if _differs(seen, key)]
        shared = [key for key in keys if key not in differ]
        parts.append(_section(f"{title} that differ", differ, seen, is_open=True))
        parts.append(_section(f"{title} that are the same", shared, seen, is_open=False))
    note = (
        [] if len(runs) == len(seen) else [html.P(f"the first {MOST_RUNS} of {len(runs):,} runs")]
    )
    return [*note, *(part for part in parts if part is not None)]


def _differs(runs: Sequence[ListedRun], key: str) -> bool:
    return len({value_of(run, key) for run in runs}) > 1


def _section(title: str, keys: list[str], runs: Sequence[ListedRun], *, is_open: bool) -> Any:
    if not keys:
        return None
    head: list[Any] = [html.Td("")]
    for run in runs:
        link = html.A(
            printable(run.name) or run.uuid[:8],
            href=f"#view=run&run={run.uuid}",
            **{"data-run": run.uuid},
        )
        head.append(html.Th(link, scope="col"))
    rows = [_row(key, runs) for key in keys[:MOST_ROWS]]
    left = len(keys) - len(rows)
    return html.Details(
        open=is_open,
        className="panel",
        children=[
            html.Summary(f"{title} ({len(keys):,})"),
            html.Div(
                html.Table([html.Thead(html.Tr(head)), html.Tbody(rows)]),
                className="scroll",
                tabIndex="0",
                role="region",
                **{"aria-label": title},
            ),
            *([html.P(f"{left:,} more are left out", className="note")] if left else []),
        ],
    )


def _row(key: str, runs: Sequence[ListedRun]) -> html.Tr:
    cells = [cell_text(value_of(run, key), key) for run in runs]
    numbers = [value for run in runs if isinstance(value := value_of(run, key), float)]
    looks = ("number " if numbers else "") + ("differs" if len(set(cells)) > 1 else "")
    return html.Tr(
        [
            html.Th(printable(column_label(key)), scope="row"),
            *(html.Td(cell or "–", className=looks) for cell in cells),
        ]
    )
