"""The record of outcomes → the table of coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.zoo.record import NOT_RUN, RECORD, Group, Row, groups, read

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
    earlier = groups(suites, record)
    for suite, group in earlier.items():
        suites[suite] = [r for r in suites.get(suite, []) if r["name"] not in group.names]
    lines = [HEAD, "| suite | models | " + " | ".join((*COLUMNS, "right of numeric", "run on"))]
    lines[-1] += " |"
    lines.append("|---" * (4 + len(COLUMNS)) + "|")
    for suite, rows in suites.items():
        lines.append(_line(suite, rows, [earlier[suite]] if suite in earlier else []))
    lines.append(_line("all", [r for rows in suites.values() for r in rows], earlier.values()))
    for suite, group in earlier.items():
        sums = ", ".join(f"{count} {verdict}" for verdict, count in group.counts.items())
        cases = f"{len(group.names)} cases of {suite}, run on {group.date}"
        lines.append(f"\nOf {cases}, only the sums were kept: {sums}.")
    for suite, rows in suites.items():
        left = sum(row["verdict"] == NOT_RUN for row in rows)
        left += earlier[suite].counts.get(NOT_RUN, 0) if suite in earlier else 0
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


def _line(suite: str, rows: Sequence[Row], earlier: Collection[Group]) -> str:
    counts = Counter(row["verdict"] for row in rows)
    for group in earlier:
        counts.update(group.counts)
    counts = Counter({verdict: counts[verdict] for verdict in COLUMNS})
    numeric = counts.total() - counts["not numeric"]
    share = f"{100 * counts['right'] / numeric:.1f} %" if numeric else "–"
    dates = sorted({row["date"] for row in rows if row.get("date")} | {g.date for g in earlier})
    days = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "–"
    cells = [suite, counts.total(), *(counts[column] for column in COLUMNS), share, days]
    return "| " + " | ".join(map(str, cells)) + " |"
