"""radT's table of runs, a CSV file with one row per run: read, and its status written back."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dippm.errors import DippmError, PlanError, UnknownNameError
from dippm.runs.plans.journal import may_be_written, write_whole
from dippm.runs.plans.plan import (
    TABLES,
    Cell,
    Plan,
    Record,
    Slots,
    is_plan,
    quoted,
    records,
    replaced,
)
from dippm.runs.plans.row import COLUMNS, OWN_COLUMNS, PlanRow, Status, read_row
from dippm.runs.plans.sweep import read_sweep
from dippm.runs.plans.workload import device_of

_NUMBER = re.compile(r"(\d+)[ \t]+")
NEEDED = ("Experiment", "Workload", "File")


def read_table(data: bytes) -> tuple[tuple[PlanRow, ...], dict[int, Slots]]:
    """Return the rows of a table and the cells of their status; no cells without such columns.

    Raises:
        PlanError: if a line is invalid, naming it.
        UnknownNameError: if a column, a status or a way of sharing is unknown.
    """
    lines = records(data)
    if not lines:
        raise PlanError("there is nothing in it", f"Its first line is {','.join(COLUMNS)}.")
    lines = _without_numbers(lines)
    columns = _columns(lines[0])
    rows, slots = [], {}
    for number, line in enumerate(lines[1:], 1):
        try:
            rows.append(read_row(number, _cells(columns, line)))
        except DippmError as error:
            raise type(error)(f"line {line.line}: {error.message}", error.hint) from error
        if "Status" in columns and "Run" in columns:
            places = (line.cells[columns.index(name)] for name in ("Status", "Run"))
            slots[number] = Slots(*places)
    if not rows:
        raise PlanError("it has no rows", "Write a line for each run.")
    return tuple(rows), slots


def write_table(rows: Iterable[PlanRow]) -> bytes:
    """Return a table that `read_table` turns into these rows."""
    rows = list(rows)
    own = OWN_COLUMNS if any(row.model for row in rows) else ()
    lines = [",".join((*COLUMNS, *own))]
    for row in rows:
        cells = (
            row.experiment,
            row.workload,
            row.name,
            str(row.status),
            row.run,
            device_of(row) if row.devices else "-",
            row.sharing or "-",
            row.file,
            "+".join(row.listeners),
            row.params,
            *[row.model] * bool(own),
        )
        lines.append(",".join(map(quoted, cells)))
    return "".join(f"{line}\n" for line in lines).encode()


def _without_numbers(lines: list[Record]) -> list[Record]:
    """Return the records without leading line numbers, as printed on slides."""
    head = _NUMBER.match(lines[0].cells[0].text)
    if head is None:
        return lines
    found = []
    for number, line in enumerate(lines, int(head[1])):
        first, *rest = line.cells
        printed = _NUMBER.match(first.text)
        if printed is None or int(printed[1]) != number:
            hint = "Take the numbers out of all lines, or leave them in all."
            raise PlanError(f"line {line.line} does not begin with its number, {number}", hint)
        cells = (first._replace(text=first.text[printed.end() :]), *rest)
        found.append(Record(line.line, cells))
    return found


def _columns(header: Record) -> list[str]:
    given = [cell.text.strip() for cell in header.cells]
    if len(given) == 1:  # copied from a slide or page, where commas get lost
        given = given[0].split()
    every = (*COLUMNS, *OWN_COLUMNS)
    folded = {name.casefold(): name for name in every}
    names = []
    for name in given:
        if name.casefold() not in folded:
            raise UnknownNameError.of("column", name, every)
        names.append(folded[name.casefold()])
    missing = [name for name in NEEDED if name not in names]
    if missing:
        hint = f"Its first line is {','.join(COLUMNS)}; Name may be left out."
        raise PlanError(f"there is no column {' and no '.join(missing)}", hint)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise PlanError(f"there are two columns {twice[0]}", "Leave one of them out.")
    return names


def _cells(columns: list[str], line: Record) -> dict[str, str]:
    if len(line.cells) != len(columns):
        hint = "Put a cell that holds a comma between double quotes."
        count = f"{len(line.cells)} cells where the first line has {len(columns)}"
        raise PlanError(f"it has {count}", hint)
    return {name: cell.text for name, cell in zip(columns, line.cells, strict=True)}


# Reading a plan from its file and the status file beside it.


LARGEST_BYTES = 64 << 20


def read_plan(path: Path) -> Plan:
    """Read a plan: a table with radT's columns, or a sweep in YAML.

    Raises:
        PlanError: if it cannot be read or is invalid; `UnknownNameError` for an unknown name.
    """
    if not is_plan(path.name):
        hint = "A plan is a .csv, .yml or .yaml file."
        raise PlanError(f"{path} is not a plan by its name", hint)
    path, data = _read(path)
    try:
        table = path.suffix.casefold() in TABLES
        rows, slots = read_table(data) if table else (read_sweep(data), {})
        plan = Plan(path, data, rows, slots)
    except DippmError as error:
        raise _of(path, error) from error
    if not plan.status_file.exists():
        return plan
    try:
        noted, _ = read_table(_read(plan.status_file)[1])
    except DippmError as error:
        hint = "Mend it, or remove it to go on without what it says."
        raise PlanError(f"{plan.status_file} cannot be read: {error}", hint) from error
    return plan._replace(rows=with_status(plan.rows, noted))


def with_status(rows: tuple[PlanRow, ...], noted: tuple[PlanRow, ...]) -> tuple[PlanRow, ...]:
    """Return rows with the status of equal rows in `noted`, matched in order."""
    waiting: dict[tuple[object, ...], list[PlanRow]] = {}
    for row in reversed(noted):
        waiting.setdefault(row.content, []).append(row)
    found = []
    for row in rows:
        same = waiting.get(row.content)
        last = same.pop() if same else row
        found.append(row._replace(status=last.status, run=last.run))
    return tuple(found)


def _read(path: Path) -> tuple[Path, bytes]:
    try:
        path = path.resolve(strict=True)
        if not path.is_file():
            raise PlanError(f"{path} is no file", "Name the file of a plan.")
        with open(path, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanError(
            f"the plan {path} cannot be read: {reason}", "Name a file that you may read."
        ) from error
    if len(data) > LARGEST_BYTES:
        raise PlanError(
            f"{path} is larger than {LARGEST_BYTES >> 20} MiB: no plan is",
            "Name the file of a plan.",
        )
    return path, data


def _of(path: Path, error: DippmError) -> DippmError:
    """Return the error with the name of the plan."""
    return type(error)(f"{path.name}: {error.message}", error.hint)


# Writes the status of a plan's rows back to its file while the plan runs.
#
# Only the cells Status and Run of a table change. If the file was changed by someone else, is
# read-only or has no such columns, everything goes to `<plan>.status.csv` instead, which is read
# together with the plan.


class StatusWriter:
    """Writes the status of a plan's rows; requires its lock.

    Args:
        plan: the plan as read.
        say: called, once, if the status goes elsewhere, or cannot be written.

    Attributes:
        place: file that is written.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan, self._say = plan, say
        self._rows = {row.number: row for row in plan.rows}
        self._texts: dict[Cell, str] = {}
        self._hash = _digest(plan.data)
        self._trouble = ""
        self.place = plan.path
        if not plan.slots:
            self._divert("")
        elif not may_be_written(plan.path):
            self._divert("the plan may not be written")
        elif plan.status_file.exists():
            self._merge_status_file()

    def row(self, number: int) -> PlanRow:
        """Return a row with its latest status."""
        return self._rows[number]

    def write(self, changes: Mapping[int, tuple[Status, str]]) -> None:
        """Write status and uuid of some rows; a failure is reported and otherwise ignored."""
        for number, (status, run) in changes.items():
            row = self._rows[number] = self._rows[number]._replace(status=status, run=run)
            if slots := self._plan.slots.get(number):
                self._texts[slots.status] = str(row.status)
                self._texts[slots.run] = row.run
        try:
            self._write()
        except OSError as error:
            self._report_failure(f"the status of rows cannot be written to {self.place}: {error}")

    def _write(self) -> None:
        if self.place == self._plan.path:
            if _digest_of(self.place) == self._hash:
                data = replaced(self._plan.data, self._texts)
                write_whole(self.place, data)
                self._hash = _digest(data)
                return
            self._divert("the plan was changed by somebody else meanwhile")
        write_whole(self.place, write_table(self._rows.values()))

    def _divert(self, why: str) -> None:
        self.place = self._plan.status_file
        if why:
            self._say(f"{why}: the status of its rows goes to {self.place.name}")

    def _merge_status_file(self) -> None:
        """Merge a status file into the plan, and remove it."""
        before = self.place
        self.write(
            {row.number: (row.status, row.run) for row in self._plan.rows if _has_status(row)}
        )
        if self.place == before and not self._trouble:
            with contextlib.suppress(OSError):
                self._plan.status_file.unlink()
                self._say(f"{self._plan.status_file.name} was taken over into the plan")

    def _report_failure(self, trouble: str) -> None:
        if not self._trouble:
            self._say(trouble)
        self._trouble = trouble


def _has_status(row: PlanRow) -> bool:
    return row.status != Status() or bool(row.run)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of(path: Path) -> str:
    try:
        return _digest(path.read_bytes())
    except FileNotFoundError:
        return ""
