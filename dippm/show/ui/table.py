"""`table`: runs as rows and columns, sorted, in collapsible groups, one screen at a time.

The key of a column names it in URLs and in saved settings:

    status, started, seconds, experiment, workload, description, uuid
    param: lr                    a setting of the workload
    tag: team                    a tag by the user
    metric: tree.rss_mb.max      a summary, or the last value that a run reported
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.runs.store.columns import NUMBERS
from dippm.show.ui.selection import ALONE, ListedRun, count_names

PARAM, TAG, METRIC = "param: ", "tag: ", "metric: "
OWN = {
    "status": "status",
    "started": "started (UTC)",
    "seconds": "duration (s)",
    "experiment": "experiment",
    "workload": "workload",
    "description": "description",
    "uuid": "uuid",
}
DEFAULT_SORT = "-started"
DEFAULT_PARAMS, DEFAULT_METRICS = 3, 3
SCREENFUL = 100
"""Number of rows per response."""
MOST_GROUPED = 20_000
"""Largest number of uuids sent with a group, so that a tick selects all of them."""
Cell = float | str | None
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line of the table: a run, or a group of runs.

    Attributes:
        label: name of the run, or shared value of the group.
        cells: text of each column, "" without a value; the mean for a group.
        uuids: uuid of the run, or of all runs of the group.
        status: status of the run; "" for a group.
        group: key of the group; "" for a run.
        open: whether the runs of the group follow.
    """

    label: str
    cells: tuple[str, ...]
    uuids: tuple[str, ...]
    status: str = ""
    group: str = ""
    open: bool = False


@dataclass(frozen=True, slots=True)
class VisibleTable:
    """The visible part of the table.

    Attributes:
        columns: keys of the columns.
        numeric: for each column whether its values are numbers, which are right-aligned.
        rows: visible rows.
        first: number of the first visible row.
        count: number of rows of the whole table.
    """

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[TableRow, ...]
    first: int
    count: int


def table(
    runs: Sequence[ListedRun],
    columns: Sequence[str] = (),
    *,
    sort: str = "",
    by: str = "",
    opened: Collection[str] = (),
    first: int = 0,
    most: int = SCREENFUL,
) -> VisibleTable:
    """Return the visible part of a table of runs.

    Args:
        runs: filtered runs, newest first.
        columns: keys of the columns; empty for `default_columns`.
        sort: key of a column, with "-" before it for descending order; "" for the newest first.
            Runs without a value come last in either order.
        by: key of the column that groups runs; "" for none.
        opened: keys of open groups.
        first: number of the first visible row, clipped to the last screen.
        most: largest number of rows.
    """
    keys = tuple(columns or default_columns(runs))
    numeric = tuple(_is_numeric(runs, key) for key in keys)
    rising, key = not (sort or DEFAULT_SORT).startswith("-"), (sort or DEFAULT_SORT).lstrip("-")
    ordered = _sort([(value_of(run, key), run) for run in runs], rising=rising)
    if not by:
        first = _within(first, most, len(ordered))
        found = [_row(run, keys) for run in ordered[first : first + most]]
        return VisibleTable(keys, numeric, tuple(found), first, len(ordered))
    gathered: dict[Cell, list[ListedRun]] = {}
    for run in ordered:
        gathered.setdefault(value_of(run, by), []).append(run)
    groups = _sort(
        [
            (_sort_value([value_of(run, key) for run in of]), (value, of))
            for value, of in gathered.items()
        ],
        rising=rising,
    )
    lines: list[tuple[Cell, list[ListedRun]] | ListedRun] = []
    for value, of in groups:
        lines.append((value, of))
        if group_key(value) in opened:
            lines += of
    first = _within(first, most, len(lines))
    seen = lines[first : first + most]
    rows = [
        _row(line, keys)
        if isinstance(line, ListedRun)
        else _group(*line, keys, numeric, by, is_open=group_key(line[0]) in opened)
        for line in seen
    ]
    return VisibleTable(keys, numeric, tuple(rows), first, len(lines))


def value_of(run: ListedRun, key: str) -> Cell:
    """Return the value of a run in a column: a number, a text, or None."""
    if key.startswith(METRIC):
        value = run.metrics.get(key.removeprefix(METRIC))
        return value if value is None or math.isfinite(value) else None
    if key.startswith(PARAM):
        return _number_or_text(run.params.get(key.removeprefix(PARAM)))
    if key.startswith(TAG):
        return run.tags.get(key.removeprefix(TAG))
    if key == "started":
        return float(run.wall_ns)
    if key == "seconds":
        return run.seconds
    if key == "workload":
        return run.group or None
    if key == "name":
        return run.name or run.uuid[:8]
    return str(getattr(run, key)) or None if key in OWN else None


def default_columns(runs: Sequence[ListedRun]) -> list[str]:
    """Return the default columns: params that differ, and metrics that most runs have."""
    often: dict[str, int] = {}
    kinds: dict[str, set[str]] = {}
    for run in runs:
        for name in run.metrics:
            often[name] = often.get(name, 0) + 1
        for name, text in run.params.items():
            kinds.setdefault(name, set()).add(text)
    differ = sorted(name for name, of in kinds.items() if len(of) > 1)
    names = [name for name in often if not _is_summary(name) and "/" not in name]
    sampled = [name for name in often if name in ("tree.rss_mb.max", "tree.cpu_s.integral")]
    metrics = sorted(names, key=lambda name: -often[name])[: DEFAULT_METRICS - 1] + sorted(sampled)
    params = [PARAM + name for name in differ[:DEFAULT_PARAMS]]
    own = ["status", "started", "seconds", "experiment", "workload"]
    return [*own, *params, *(METRIC + name for name in metrics[: DEFAULT_METRICS + 1])]


def known_columns(runs: Iterable[ListedRun]) -> list[str]:
    """Return the keys of all columns that at least one run has."""
    params: dict[str, None] = {}
    tags: dict[str, None] = {}
    metrics: dict[str, None] = {}
    for run in runs:
        params.update(dict.fromkeys(run.params))
        tags.update(dict.fromkeys(run.tags))
        metrics.update(dict.fromkeys(run.metrics))
    return [
        *OWN,
        *(PARAM + name for name in sorted(params)),
        *(TAG + name for name in sorted(tags)),
        *(METRIC + name for name in sorted(metrics)),
    ]


def column_label(key: str) -> str:
    """Return the header of a column."""
    if key in OWN:
        return OWN[key]
    return key.removeprefix(PARAM).removeprefix(TAG).removeprefix(METRIC)


def group_key(value: Cell) -> str:
    """Return the key of a group."""
    return json.dumps(value)


def cell_text(value: Cell, key: str) -> str:
    """Return the text of a cell."""
    if value is None:
        return ""
    if key == "started" and isinstance(value, float):
        return datetime.fromtimestamp(value / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, str):
        return printable(value)
    return f"{value:g}" if key.startswith(PARAM) else show(value)


def _within(first: int, most: int, count: int) -> int:
    return min(max(0, first), max(0, count - 1) // most * most)


def _row(run: ListedRun, keys: tuple[str, ...]) -> TableRow:
    cells = tuple(cell_text(value_of(run, key), key) for key in keys)
    return TableRow(printable(run.name) or run.uuid[:8], cells, (run.uuid,), run.status)


def _group(
    value: Cell,
    runs: list[ListedRun],
    keys: tuple[str, ...],
    numeric: tuple[bool, ...],
    by: str,
    *,
    is_open: bool,
) -> TableRow:
    label = f"{cell_text(value, by) or ALONE} ({len(runs):,})"
    cells = tuple(
        _group_cell([value_of(run, key) for run in runs], key, is_number)
        for key, is_number in zip(keys, numeric, strict=True)
    )
    uuids = tuple(run.uuid for run in runs[:MOST_GROUPED])
    return TableRow(label, cells, uuids, "", group_key(value), is_open)


def _group_cell(values: list[Cell], key: str, is_number: bool) -> str:
    """Return mean and range of numbers, or the distinct texts, or their number."""
    numbers = [value for value in values if isinstance(value, float)]
    if key == "started":
        return cell_text(max(numbers), key) if numbers else ""
    if is_number:
        if not numbers:
            return ""
        low, high = min(numbers), max(numbers)
        mean, *ends = (cell_text(o, key) for o in (sum(numbers) / len(numbers), low, high))
        return mean if low == high else f"{mean} ({ends[0]} – {ends[1]})"
    texts = count_names(cell_text(value, key) for value in values if value is not None)
    if key == "status":
        return ", ".join(f"{count:,} {text}" for text, count in texts)
    return texts[0][0] if len(texts) == 1 else f"{len(texts):,} different" if texts else ""


def _sort(items: list[tuple[Cell, Item]], *, rising: bool) -> list[Item]:
    """Return items sorted by value: numbers, then texts, then items without a value."""
    numbers = [pair for pair in items if isinstance(pair[0], float)]
    texts = [pair for pair in items if isinstance(pair[0], str)]
    none = [item for value, item in items if value is None]
    numbers.sort(key=lambda pair: float(pair[0] or 0), reverse=not rising)
    texts.sort(key=lambda pair: str(pair[0]).casefold(), reverse=not rising)
    return [item for _, item in (*numbers, *texts)] + none


def _sort_value(values: list[Cell]) -> Cell:
    """Return the sort value of a group: the mean of its numbers, or its first text."""
    numbers = [value for value in values if isinstance(value, float)]
    if numbers:
        return sum(numbers) / len(numbers)
    return next((value for value in values if value is not None), None)


def _is_numeric(runs: Sequence[ListedRun], key: str) -> bool:
    return any(isinstance(value_of(run, key), float) for run in runs[:SCREENFUL])


def _is_summary(name: str) -> bool:
    series, _, number = name.rpartition(".")
    return number in NUMBERS and "." in series


def _number_or_text(text: str | None) -> Cell:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
