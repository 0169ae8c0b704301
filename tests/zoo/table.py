"""Outcomes → the table of coverage."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

HEAD = """# What DIPPM reads

Made on {date} by `make zoo` (`python -m tests.zoo --table docs/coverage.md`). MACs are held against
a count by other means (torch's FlopCounterMode, the framework's own count, or one from layer
shapes), result shapes against the framework's.

- **right**: MACs or result shapes agree. **unchecked**: read, but there is no other count.
- **noted**: they differ, and a note or a named unknown operator says so.
- **refused**: a typed error with its next step, in time.
- **wrong**: they differ in silence. **crashed**: an untyped error, or no answer in time.

Models that the framework itself cannot build here (they need a download or a package) do not count.
"""
COLUMNS = ("right", "unchecked", "noted", "refused", "wrong", "crashed")


def note_size(outcomes: Path, suite: str, cases: int) -> None:
    """Note how many cases a suite has, so that a table can say what was not run yet."""
    path = _sizes_path(outcomes)
    path.write_text(json.dumps({**_sizes(outcomes), suite: cases}))


def _sizes_path(outcomes: Path) -> Path:
    return outcomes.with_suffix(".sizes.json")


def _sizes(outcomes: Path) -> dict[str, int]:
    path = _sizes_path(outcomes)
    return json.loads(path.read_text()) if path.exists() else {}


def write_table(outcomes: Path, table: Path) -> None:
    """Write the table of coverage as Markdown: one line a suite, then what is not right."""
    rows = [json.loads(line) for line in outcomes.read_text().splitlines()]
    tried = Counter(row["suite"] for row in rows)
    left = {suite: size - tried[suite] for suite, size in _sizes(outcomes).items()}
    rows = [row for row in rows if row["verdict"] != "not built"]
    lines = [HEAD.format(date=datetime.now(UTC).date()), ""]
    lines.append("| suite | models | " + " | ".join(COLUMNS) + " |")
    lines.append("|---" * (2 + len(COLUMNS)) + "|")
    for suite in (*dict.fromkeys(row["suite"] for row in rows), "all"):
        counts = Counter(row["verdict"] for row in rows if suite in (row["suite"], "all"))
        cells = [str(counts[column]) for column in COLUMNS]
        lines.append(f"| {suite} | {counts.total()} | " + " | ".join(cells) + " |")
    lines += [
        f"\n{count} models of {suite} were not run yet."
        for suite, count in left.items()
        if count > 0
    ]
    others = [row for row in rows if row["verdict"] not in ("right", "unchecked")]
    if others:
        lines += ["", "| suite | model | verdict | what was said |", "|---|---|---|---|"]
    for row in sorted(others, key=lambda row: (row["verdict"], row["suite"], row["name"])):
        said = row["detail"].replace("|", r"\|").replace("\n", " ")[:160]
        lines.append(f"| {row['suite']} | {row['name']} | {row['verdict']} | {said} |")
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("\n".join(lines) + "\n")
