"""Runs in a table, and one run in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.table import Table

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.runs.store.columns import NUMBERS
from dippm.runs.store.record import as_json
from dippm.runs.store.stored_run import StoredRun


def short_document(run: StoredRun) -> dict[str, Any]:
    """Return the entry of a run in a list, as JSON."""
    return {
        "uuid": run.uuid,
        "name": run.name,
        "experiment": run.experiment,
        "status": run.status,
        "started": when(run),
        "seconds": run.seconds,
        "description": run.description,
        "metrics": dict(sorted(run.metrics.items())),
        "attaching": run.attaching,
    }


def whole_document(run: StoredRun) -> dict[str, Any]:
    """Return everything about a run except its samples, as JSON."""
    return {
        **short_document(run),
        "start": as_json(run.start),
        "end": as_json(run.end),
        "summaries": [asdict(summary) for summary in run.summaries.values()],
        "spans": [as_json(span) for span in run.spans],
        "values": [as_json(value) for value in run.values],
        "remarks": list(run.remarks),
        "artifacts": list(run.artifacts),
        "comparison": run.comparison,
    }


def when(run: StoredRun) -> str:
    """Return the start of a run in local time."""
    return datetime.fromtimestamp(run.wall_ns / 1e9).astimezone().isoformat(timespec="seconds")


def runs_table(runs: Sequence[StoredRun]) -> Table:
    """Return a row per run."""
    table = Table("uuid", "started", "experiment", "name", "status", box=None)
    table.add_column("seconds", justify="right")
    table.add_column("description")
    for run in runs:
        table.add_row(
            run.uuid[:8],
            when(run)[:19].replace("T", " "),
            *(_cell(text) for text in (run.experiment, run.name, _status(run))),
            show(run.seconds),
            _cell(run.description),
        )
    return table


def details(run: StoredRun) -> list[Table | str]:
    """Return one run in full: description, summaries, calls, values and remarks."""
    start, end = run.start, run.end
    facts = {
        "uuid": run.uuid,
        "name": run.name,
        "experiment": run.experiment,
        "status": _status(run) + (f" ({end.error})" if end.error else ""),
        "started": f"{when(run)} on {start.host}",
        "seconds": show(run.seconds),
        "exit code": "" if end.exit_code is None else str(end.exit_code),
        "command": " ".join(start.command),
        "description": start.description,
        **{f"param {name}": value for name, value in start.params.items()},
        **{f"tag {name}": value for name, value in start.tags.items()},
        **{name: str(v).splitlines()[0] if v else "" for name, v in start.environment.items()},
    }
    table = Table(box=None, show_header=False)
    for name, value in facts.items():
        if value:
            table.add_row(_cell(name), _cell(value[:200]))
    found: list[Table | str] = [table]
    if run.summaries:
        found.append(_summaries(run))
    if run.spans:
        found.append(_calls(run))
    if run.values:
        kinds: dict[tuple[str, str], int] = {}
        for item in run.values:
            kinds[item.kind, item.name] = kinds.get((item.kind, item.name), 0) + 1
        counts = [f"{_cell(name)} ({kind}, {n})" for (kind, name), n in kinds.items()]
        found.append("told: " + ", ".join(counts))
    if run.artifacts:
        found.append("artifacts: " + ", ".join(_cell(name) for name in run.artifacts))
    found += [f"remark: {_cell(remark)}" for remark in run.remarks]
    return found


def _status(run: StoredRun) -> str:
    return f"{run.status}, being attached" if run.attaching else run.status


def _summaries(run: StoredRun) -> Table:
    table = Table("series", "unit", box=None)
    for number in NUMBERS:
        table.add_column(number, justify="right")
    table.add_column("absent")
    for item in run.summaries.values():
        numbers = item.numbers()
        shown = [show(numbers[name]) if name in numbers else "–" for name in NUMBERS[:-1]]
        unit = f"{item.unit}/s" if item.counter else item.unit
        table.add_row(_cell(item.series), _cell(unit), *shown, str(item.n), _cell(item.reason))
    return table


def _calls(run: StoredRun) -> Table:
    table = Table("calls of", box=None)
    for name in ("n", "failed", "mean s", "max s"):
        table.add_column(name, justify="right")
    for name in dict.fromkeys(span.name for span in run.spans):
        spans = [span for span in run.spans if span.name == name]
        seconds = [(s.end_ns - s.start_ns) / 1e9 for s in spans if s.end_ns is not None]
        failed = sum(span.status == "failed" for span in spans)
        mean = show(sum(seconds) / len(seconds)) if seconds else "–"
        longest = show(max(seconds)) if seconds else "–"
        table.add_row(_cell(name), str(len(spans)), str(failed), mean, longest)
    return table


def _cell(text: str) -> str:
    """Escape text for the terminal and for rich's markup."""
    return printable(text).replace("[", r"\[")
