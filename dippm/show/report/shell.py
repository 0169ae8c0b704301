"""`page`: the frame of every page: security policy, style, and scrollable tables.

A page is one file that opens without a network; scripts run only on pages with plots.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from dippm.base.printable import json_text, printable
from dippm.show.report.tables import TerminalTable

POLICY = (
    "default-src 'none'; {script}style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --faint: #555; --line: #ddd;
  --track: #f1f4f8; --alarm: #a3152c }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe5ec; --paper: #14181e; --faint: #a3adb9;
  --line: #38414c; --track: #262e38; --alarm: #ff8a97 } }
*, ::before { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: break-word }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere } h2 { margin-top: 2.5rem }
.wide { overflow-x: auto; max-width: 100%; margin: 1rem 0 }
table { border-collapse: collapse }
caption { text-align: left; caption-side: bottom; color: var(--faint) }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: normal }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.typed { white-space: pre } td.words { min-width: 12rem } td.name { min-width: 8rem }
nav a { margin-right: 1rem } small, .absent { color: var(--faint) } pre { white-space: pre-wrap }
li code { display: inline-block; max-width: 100% }
ul.notes { padding-left: 1.2rem } li.warning::marker { content: "! "; color: var(--alarm) }
table.designs { font-size: 13px } table.designs tbody tr:hover { background: var(--track) }
table.designs td { white-space: nowrap }
table.designs td:last-child { white-space: normal; min-width: 12rem }
table.designs th { cursor: pointer; white-space: nowrap }
.js-plotly-plot, .plotly-graph-div { max-width: 100%; overflow: hidden; color: #1c2430;
  background: #fff; color-scheme: light }
figure.bars { margin: 1.5rem 0; font-variant-numeric: tabular-nums }
.bars figcaption { font-weight: 600; margin-bottom: .3rem }
.bars .row { display: grid; grid-template-columns: minmax(6rem, 19rem) 1fr minmax(6rem, 13rem);
  gap: 0 .8rem; align-items: center; padding: .15rem 0 }
.bars .name { overflow-wrap: anywhere } .bars .said { color: var(--faint); font-size: .9em }
.bars .track { position: relative; height: 1.1rem; background: var(--track) }
.bars .track > * { position: absolute; top: 0; bottom: 0 }
.bars .part { top: .15rem; bottom: .15rem }
.bars .between { top: calc(50% - 1px); bottom: auto; height: 2px; background: var(--ink) }
.bars .between::before, .bars .between::after { content: ""; position: absolute; top: -3px;
  height: 8px; border-left: 2px solid var(--ink) }
.bars .between::after { right: 0 }
.bars .limit { border-left: 2px dashed var(--alarm); top: -.15rem; bottom: -.15rem }
.bars .axis { color: var(--faint); font-size: .85em; align-items: start }
.bars .axis .track { background: none }
.bars .tick { transform: translateX(-50%); white-space: nowrap }
.bars .tick:first-child { transform: none } .bars .tick:last-child { transform: translateX(-100%) }
.memory svg { display: block; width: 100%; padding-left: 3.6rem; overflow: visible;
  font-size: .75rem; fill: var(--faint) }
.legend { color: var(--faint); font-size: .9em }
.legend span { margin-right: 1rem; white-space: nowrap }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .3em }
.legend i.limit { width: 0; border-left: 2px dashed var(--alarm); height: 1em;
  vertical-align: -.15em }
@media (max-width: 40rem) {
  body { margin: 1rem auto; padding: 0 .75rem } h1 { font-size: 1.3rem }
  th, td { padding: .2rem .5rem }
  .bars .row { grid-template-columns: 1fr auto; padding: .3rem 0 }
  .bars .track { grid-row: 2; grid-column: 1 / 3 }
  .bars .axis .name, .bars .axis .said, svg .long { display: none }
}
"""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>{style}</style>{script}</head><body>
<h1>{title}</h1>
{body}
{everything}</body></html>
"""
EVERYTHING = "<h2>Everything</h2><details><summary>JSON</summary><pre>{}</pre></details>"
_DIGITS = re.compile(r"\d[\d.,]*")
_CODE = re.compile(r"`([^`<>]+)`")
_NUMBER = r"[−+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?"
_NUMERIC = re.compile(
    rf"(?:[×<>≤≥] ?)?{_NUMBER}(?: ?(?:%|MB|GB|ms|s|J|W|µs|GMACs))?(?: – {_NUMBER})?"
    r"(?: [!*]| or more| \([\d.]+ ?% of \d+\))?"
)
NUMBERS = ' class="n"'
LONG = 32
"""Length of a cell above which its column has a minimum width."""
_ABSENT = ("", "–", "none", "0")


def page(title: str, body: str, document: Any = None, *, script: str = "") -> str:
    """Return a whole page.

    Args:
        title: title and heading, any text.
        body: markup.
        document: JSON-ready data in a collapsed block at the end; None for none.
        script: markup of scripts, for pages with plots; other pages may run none.
    """
    return PAGE.format(
        title=escape(printable(title)),
        policy=POLICY.format(script="script-src 'unsafe-inline'; " if script else ""),
        style=STYLE,
        script=script,
        body=body + check_markup(document),
        everything="" if document is None else EVERYTHING.format(escape(json_text(document))),
    )


def check_markup(document: Any) -> str:
    """Return the commands that check an answer as markup, or why there are none; "" otherwise."""
    parts = document[:1] if isinstance(document, list) else [document]
    whole = next((part for part in parts if isinstance(part, Mapping)), {})
    sides = [p for key, p in whole.items() if key != "absent" and isinstance(p, Mapping)]
    lines = dict.fromkeys(part["verify"] for part in (whole, *sides) if part.get("verify"))
    if lines:
        return "".join(f"<p>verify: <code>{escape(printable(line))}</code></p>" for line in lines)
    absent = whole.get("absent")
    reason = absent.get("verify") if isinstance(absent, Mapping) else None
    return f"<p>verify: no command: {escape(printable(reason))}</p>" if reason else ""


def note_list(notes: Iterable[str]) -> str:
    """Return notes as a list; "!" starts a warning, backticks enclose code.

    Warnings that differ from an earlier one in nothing but numbers are folded below it.
    """
    alike: dict[str | int, list[str]] = {}
    for note in notes:
        text = note.strip()
        # A note that is no warning stands alone: its key is its place.
        key = _DIGITS.sub("0", text) if text.startswith("! ") else len(alike)
        alike.setdefault(key, []).append(text)
    items = "".join(_note(*dict.fromkeys(texts)) for texts in alike.values())
    return f'<ul class="notes">{items}</ul>' if items else ""


def _note(first: str, *others: str) -> str:
    kind = ' class="warning"' if first.startswith("! ") else ""
    items = "".join(f"<li>{note_markup(text.removeprefix('! '))}</li>" for text in others)
    folded = f"<summary>likewise: {len(others)} more</summary><ul>{items}</ul>"
    more = f"<details>{folded}</details>" if others else ""
    return f"<li{kind}>{note_markup(first.removeprefix('! '))}{more}</li>"


def note_markup(text: str) -> str:
    """Return a sentence as markup, with text in backticks as code."""
    return with_code(escape(printable(text)))


def with_code(markup: str) -> str:
    """Return markup with text in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", markup)


def table_markup(table: TerminalTable, *, name: str = "", typed: bool = False) -> str:
    """Return all columns and rows of a table, in a scrollable box.

    Args:
        table: the table; columns of numbers are right-aligned.
        name: id of the table on the page.
        typed: keep leading blanks of the first column.
    """
    texts = [[str(cell) for cell in row] for row in table.rows]
    kinds = []
    for place, column in enumerate(table.columns):
        cells = [row[place].strip() for row in texts]
        is_prose = column.folds and max(map(len, cells), default=0) > LONG
        kind = ' class="words"' if is_prose and place else ' class="name"' * column.folds
        kind = ' class="typed"' if typed and place == 0 else kind
        kinds.append(NUMBERS if is_numeric(cells) else kind)
    head = "".join(
        f"<th{kind if kind == NUMBERS else ''}>{escape(printable(column.name))}</th>"
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{note_markup(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)
        )
        + "</tr>"
        for row in texts
    )
    identity = f' id="{name}"' if name else ""
    return f'<div class="wide"><table{identity}><tr>{head}</tr>{rows}</table></div>'


def is_numeric(cells: Iterable[str]) -> bool:
    """Return whether a column holds only numbers, with or without units."""
    there = [cell for cell in cells if cell not in _ABSENT]
    return bool(there) and all(_NUMERIC.fullmatch(cell) for cell in there)
