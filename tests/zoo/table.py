"""The record of outcomes → the table of coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.zoo.record import NOT_RUN, RECORD, Row, read

HEAD = """# What DIPPM reads

Written by `make zoo` (`python -m tests.zoo --table docs/coverage.md`) from the outcome of each case
in `tests/zoo/outcomes/`; the dates say when a suite was run. MACs are held against a count by other
means (torch's FlopCounterMode, the framework's own count, or one from layer shapes), result shapes
against the framework's.

- **right**: MACs or result shapes agree. **unchecked**: read, but there is no other count.
- **noted**: they differ, and a note or a named unknown operator says so.
- **not numeric**: refused, as it should be: it takes or gives text, a sequence of unknown length,
  an optional value, or a tensor without elements; read off the model file, not off the refusal.
- **refused**: a typed error with its next step, in time, for any other model.
- **wrong**: they differ in silence. **crashed**: an untyped error, or no answer in time.
- **right of numeric**: of all models but those that are not numeric.

Models that the framework itself cannot build here (they need a download or a package) do not count.
"""
COLUMNS = ("right", "unchecked", "noted", "not numeric", "refused", "wrong", "crashed")
GOOD = ("right", "unchecked")


def write_table(table: Path, record: Path = RECORD) -> None:
    """Write the table of coverage as Markdown: one line a suite, then what is not right."""
    suites = read(record)
    lines = [HEAD, "| suite | models | " + " | ".join((*COLUMNS, "right of numeric", "run on"))]
    lines[-1] += " |"
    lines.append("|---" * (4 + len(COLUMNS)) + "|")
    lines += [_line(suite, rows) for suite, rows in suites.items()]
    lines.append(_line("all", [row for rows in suites.values() for row in rows]))
    for suite, rows in suites.items():
        left = sum(row["verdict"] == NOT_RUN for row in rows)
        if left:
            lines.append(f"\n{left} models of {suite} were not run yet.")
    others = [
        (row["verdict"], suite, row["name"], row.get("detail", ""))
        for suite, rows in suites.items()
        for row in rows
        if row["verdict"] in COLUMNS and row["verdict"] not in GOOD
    ]
    if others:
        lines += ["", "| suite | model | verdict | what was said |", "|---|---|---|---|"]
    for verdict, suite, name, detail in sorted(others):
        said = detail.replace("|", r"\|").replace("\n", " ")
        lines.append(f"| {suite} | {name} | {verdict} | {said} |")
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("\n".join(lines) + "\n")


def _line(suite: str, rows: Sequence[Row]) -> str:
    counts = Counter(row["verdict"] for row in rows if row["verdict"] in COLUMNS)
    numeric = counts.total() - counts["not numeric"]
    share = f"{100 * counts['right'] / numeric:.1f} %" if numeric else "–"
    dates = sorted({row["date"] for row in rows if row.get("date")})
    days = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "–"
    cells = [suite, counts.total(), *(counts[column] for column in COLUMNS), share, days]
    return "| " + " | ".join(map(str, cells)) + " |"
