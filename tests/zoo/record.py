"""The committed record: what came of each case when it was last run, one file a suite.

The table of coverage follows from it alone, so that a new run of some cases costs those cases, and
`git diff` shows which model got better or worse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]

RECORD = Path(__file__).with_name("outcomes")
FIELDS = ("name", "verdict", "date", "macs", "detail")
SAID = frozenset({"right", "unchecked"})
"""Verdicts whose details (notes about inputs and the like) are not kept."""
NOT_RUN = "not run"
MAX_DETAIL = 160
_INSTALLED = re.compile(r"/[^\s']*/site-packages/")
"""Where packages lie is the business of the machine that ran the case."""


def read(record: Path = RECORD) -> dict[str, list[Row]]:
    """Return the rows of each suite, by name of the case."""
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(record.glob("*.jsonl"))
    }


def recorded(suite: str, record: Path = RECORD) -> set[str]:
    """Return the names of the cases of a suite of which the record has an outcome."""
    return {row["name"] for row in read(record).get(suite, ()) if row["verdict"] != NOT_RUN}


@dataclass(frozen=True, slots=True)
class Group:
    """Cases of which only the sums of an earlier run are known, not which had which outcome.

    They count as they did until all of them have been run again.
    """

    date: str
    counts: Mapping[str, int]
    names: frozenset[str]


def groups(rows: Mapping[str, list[Row]], record: Path = RECORD) -> dict[str, Group]:
    """Return the group of each suite that has one which still counts.

    Args:
        rows: of each suite, see `read`.
        record: folder of the record; its `earlier.json` holds the groups.
    """
    path = record / "earlier.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    found = {}
    for suite, group in stored.items():
        names = frozenset(group["names"])
        done = {r["name"] for r in rows.get(suite, ()) if r["verdict"] != NOT_RUN}
        if not names <= done:
            found[suite] = Group(group["date"], group["counts"], names)
    return found


def names_path(outcomes: Path) -> Path:
    """Return where a run keeps the names of all cases, by suite."""
    return outcomes.with_suffix(".names.json")


def note_names(outcomes: Path, suite: str, names: Iterable[str]) -> None:
    """Note which cases a suite has: others leave the record, and those without outcome show."""
    path = names_path(outcomes)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, suite: list(names)}))


def merge(outcomes: Path, record: Path = RECORD) -> None:
    """Put the outcomes of a run into the record.

    Args:
        outcomes: what the run wrote, one JSON object a line.
        record: folder of the record.
    """
    path = names_path(outcomes)
    names: Mapping[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    suites = {suite: {row["name"]: row for row in rows} for suite, rows in read(record).items()}
    lines = outcomes.read_text().splitlines() if outcomes.exists() else []
    for row in map(json.loads, lines):
        suites.setdefault(row["suite"], {})[row["name"]] = row
    record.mkdir(parents=True, exist_ok=True)
    for suite, rows in suites.items():
        kept = names.get(suite, list(rows))
        found = [rows.get(name, {"name": name, "verdict": NOT_RUN}) for name in sorted(kept)]
        text = "".join(json.dumps(_short(row), ensure_ascii=False) + "\n" for row in found)
        (record / f"{suite}.jsonl").write_text(text)


def _short(row: Row) -> Row:
    short = {field: row[field] for field in FIELDS if row.get(field)}
    if row["verdict"] in SAID:
        short.pop("detail", None)
    if "detail" in short:
        short["detail"] = _INSTALLED.sub("", short["detail"])[:MAX_DETAIL]
    return short
