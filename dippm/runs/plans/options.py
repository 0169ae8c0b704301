"""The options of a plan, its observers, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from dippm.runs.plans.row import PlanRow, Status


class PlanOptions(NamedTuple):
    """The options of a plan.

    Attributes:
        rerun_failed: whether failed and timed-out rows are repeated.
        timeout_s: time limit of a row; 0 for none.
        hz: samples per second.
        store: URI of the store; "" for the default one.
        ray: address of a Ray cluster to execute workloads on; "" for this machine.
    """

    rerun_failed: bool = False
    timeout_s: float = 0.0
    hz: float = 10.0
    store: str = ""
    ray: str = ""


Terms = PlanOptions
"""Former name."""


class StatusSink(Protocol):
    """Records the status of rows."""

    def write(self, changes: Mapping[int, tuple[Status, str]]) -> None:
        """Record status and uuid of some rows."""


class PlanObserver(Protocol):
    """Is notified while a plan is executed."""

    def line(self, name: str, text: str) -> None:
        """Take a line that a run printed."""

    def say(self, text: str) -> None:
        """Take a remark for the user."""

    def became(self, row: PlanRow, status: Status, seconds: float) -> None:
        """Take the final status of a row and its duration."""


class PlanOutcome(NamedTuple):
    """The outcome of a plan.

    Attributes:
        rows: all rows with their current status.
        ran: numbers of the rows that were started.
        skipped: numbers of the rows that were not selected.
        signal: signal that ended the plan early, 0 for none.
        seconds: elapsed time.
    """

    rows: tuple[PlanRow, ...]
    ran: tuple[int, ...]
    skipped: tuple[int, ...]
    signal: int
    seconds: float

    @property
    def well(self) -> bool:
        """Whether every row is finished, except those that run on another machine."""
        words = {
            row.status.word
            for row in self.rows
            if row.status.word != "RUNNING" or row.number not in self.skipped
        }
        return not self.signal and words <= {"FINISHED"}
