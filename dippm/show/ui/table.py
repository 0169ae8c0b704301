"""`table`: runs as rows and columns, sorted, in groups that open and close, a screenful at a time.

A column has a key that names it in addresses and in explorations:

    status, started, seconds, experiment, workload, description, uuid
    param: lr                    a setting of the workload
    tag: team                    a free word of the user's
    metric: tree.rss_mb.max      a summary, or the last number of what a run told
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from dippm.base.numbers import show
from dippm.base.printable import printable
from dippm.runs.store.summary import NUMBERS
from dippm.show.ui.selection import ALONE, Listed, counted

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
"""Rows of one answer."""
MOST_GROUPED = 20_000
"""uuids of a group that travel with it, so that a tick takes all of them."""
Cell = float | str | None
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: a run, or a group of runs.

    Attributes:
        label: name of the run, or what the runs of the group share.
        cells: text of each column, "" where a run has nothing there; of a group the mean.
        uuids: of the run, or of the runs of the group.
        status: of the run, "" of a group.
        group: key of the group, "" for a run.
        open: whether the runs of the group follow.
    """

    label: str
    cells: tuple[str, ...]
    uuids: tuple[str, ...]
    status: str = ""
    group: str = ""
    open: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """What is seen of the table.

    Attributes:
        columns: keys.
        numeric: of each column, whether its values are numbers, which stand on the right.
        rows: a screenful.
        first: number of the first of them.
        count: rows of the whole table.
    """

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[Row, ...]
    first: int
    count: int


def table(
    runs: Sequence[Listed],
    columns: Sequence[str] = (),
    *,
    sort: str = "",
    by: str = "",
    opened: Collection[str] = (),
    first: int = 0,
    most: int = SCREENFUL,
) -> Table:
    """Return a part of a table of runs.

    Args:
        runs: those that passed the filters, newest first.
        columns: keys; none for `default_columns`.
        sort: key of a column, with "-" before it for falling order; "" for the newest first.
            Runs that have nothing there come last, either way.
        by: key of a column whose values gather runs into groups; "" for none.
        opened: keys of groups whose runs are shown.
        first: number of the first row; of the last screenful if there are fewer.
        most: rows.
    """
    keys = tuple(columns or default_columns(runs))
    numeric = tuple(_is_numeric(runs, key) for key in keys)
    rising, key = not (sort or DEFAULT_SORT).startswith("-"), (sort or DEFAULT_SORT).lstrip("-")
    ordered = _ordered([(value_of(run, key), run) for run in runs], rising=rising)
    if not by:
        first = _within(first, most, len(ordered))
        found = [_row(run, keys) for run in ordered[first : first + most]]
        return Table(keys, numeric, tuple(found), first, len(ordered))
    gathered: dict[Cell, list[Listed]] = {}
    for run in ordered:
        gathered.setdefault(value_of(run, by), []).append(run)
    groups = _ordered(
        [
            (_middle([value_of(run, key) for run in of]), (value, of))
            for value, of in gathered.items()
        ],
        rising=rising,
    )
    lines: list[tuple[Cell, list[Listed]] | Listed] = []
    for value, of in groups:
        lines.append((value, of))
        if group_key(value) in opened:
            lines += of
    first = _within(first, most, len(lines))
    seen = lines[first : first + most]
    rows = [
        _row(line, keys)
        if isinstance(line, Listed)
        else _group(*line, keys, numeric, by, is_open=group_key(line[0]) in opened)
        for line in seen
    ]
    return Table(keys, numeric, tuple(rows), first, len(lines))


def value_of(run: Listed, key: str) -> Cell:
    """Return what a run has in a column: a number, a text, or None."""
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


def default_columns(runs: Sequence[Listed]) -> list[str]:
    """Return columns for somebody who chose none: params that differ, and what most runs tell."""
    often: dict[str, int] = {}
    kinds: dict[str, set[str]] = {}
    for run in runs:
        for name in run.metrics:
            often[name] = often.get(name, 0) + 1
        for name, text in run.params.items():
            kinds.setdefault(name, set()).add(text)
    differ = sorted(name for name, of in kinds.items() if len(of) > 1)
    told = [name for name in often if not _is_summary(name) and "/" not in name]
    sampled = [name for name in often if name in ("tree.rss_mb.max", "tree.cpu_s.integral")]
    metrics = sorted(told, key=lambda name: -often[name])[: DEFAULT_METRICS - 1] + sorted(sampled)
    params = [PARAM + name for name in differ[:DEFAULT_PARAMS]]
    own = ["status", "started", "seconds", "experiment", "workload"]
    return [*own, *params, *(METRIC + name for name in metrics[: DEFAULT_METRICS + 1])]


def known_columns(runs: Iterable[Listed]) -> list[str]:
    """Return the keys of all columns that any of the runs has."""
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
    """Return what stands above a column."""
    if key in OWN:
        return OWN[key]
    return key.removeprefix(PARAM).removeprefix(TAG).removeprefix(METRIC)


def group_key(value: Cell) -> str:
    """Return the key of a group, as `opened` names it."""
    return json.dumps(value)


def cell_text(value: Cell, key: str) -> str:
    """Return what stands in a cell."""
    if value is None:
        return ""
    if key == "started" and isinstance(value, float):
        return datetime.fromtimestamp(value / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, str):
        return printable(value)
    return f"{value:g}" if key.startswith(PARAM) else show(value)


def _within(first: int, most: int, count: int) -> int:
    return min(max(0, first), max(0, count - 1) // most * most)


def _row(run: Listed, keys: tuple[str, ...]) -> Row:
    cells = tuple(cell_text(value_of(run, key), key) for key in keys)
    return Row(printable(run.name) or run.uuid[:8], cells, (run.uuid,), run.status)


def _group(
    value: Cell,
    runs: list[Listed],
    keys: tuple[str, ...],
    numeric: tuple[bool, ...],
    by: str,
    *,
    is_open: bool,
) -> Row:
    label = f"{cell_text(value, by) or ALONE} ({len(runs):,})"
    cells = tuple(
        _group_cell([value_of(run, key) for run in runs], key, is_number)
        for key, is_number in zip(keys, numeric, strict=True)
    )
    uuids = tuple(run.uuid for run in runs[:MOST_GROUPED])
    return Row(label, cells, uuids, "", group_key(value), is_open)


def _group_cell(values: list[Cell], key: str, is_number: bool) -> str:
    """Return the mean and range of numbers, the texts that there are, or how many."""
    numbers = [value for value in values if isinstance(value, float)]
    if key == "started":
        return cell_text(max(numbers), key) if numbers else ""
    if is_number:
        if not numbers:
            return ""
        low, high = min(numbers), max(numbers)
        mean, *ends = (cell_text(o, key) for o in (sum(numbers) / len(numbers), low, high))
        return mean if low == high else f"{mean} ({ends[0]} – {ends[1]})"
    texts = counted(cell_text(value, key) for value in values if value is not None)
    if key == "status":
        return ", ".join(f"{count:,} {text}" for text, count in texts)
    return texts[0][0] if len(texts) == 1 else f"{len(texts):,} different" if texts else ""


def _ordered(items: list[tuple[Cell, Item]], *, rising: bool) -> list[Item]:
    """Return items by their values: numbers, then texts, then those without any."""
    numbers = [pair for pair in items if isinstance(pair[0], float)]
    texts = [pair for pair in items if isinstance(pair[0], str)]
    none = [item for value, item in items if value is None]
    numbers.sort(key=lambda pair: float(pair[0] or 0), reverse=not rising)
    texts.sort(key=lambda pair: str(pair[0]).casefold(), reverse=not rising)
    return [item for _, item in (*numbers, *texts)] + none


def _middle(values: list[Cell]) -> Cell:
    """Return what a group is sorted by: the mean of its numbers, or its first text."""
    numbers = [value for value in values if isinstance(value, float)]
    if numbers:
        return sum(numbers) / len(numbers)
    return next((value for value in values if value is not None), None)


def _is_numeric(runs: Sequence[Listed], key: str) -> bool:
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
