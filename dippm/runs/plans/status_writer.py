"""Writes the status of a plan's rows back to its file while the plan runs.

Only the cells Status and Run of a table change. If the file was changed by someone else, is
read-only or has no such columns, everything goes to `<plan>.status.csv` instead, which is read
together with the plan.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from dippm.runs.plans.cells import Cell, replaced
from dippm.runs.plans.plan import Plan
from dippm.runs.plans.row import PlanRow
from dippm.runs.plans.state_paths import may_be_written, write_whole
from dippm.runs.plans.status import Status
from dippm.runs.plans.table import write_table


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
