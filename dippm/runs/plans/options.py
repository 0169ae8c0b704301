"""How a plan is carried out, and who hears of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from dippm.runs.plans.row import PlanRow
from dippm.runs.plans.status import Status


class PlanOptions(NamedTuple):
    """How a plan is carried out.

    Attributes:
        rerun_failed: whether rows are repeated that failed or took too long.
        timeout_s: a row is ended after so long; 0 for no limit.
        hz: samples per second.
        store: URI of the store; "" for the usual one.
        ray: address of a Ray cluster whose nodes do the work; "" for this machine alone.
    """

    rerun_failed: bool = False
    timeout_s: float = 0.0
    hz: float = 10.0
    store: str = ""
    ray: str = ""


Terms = PlanOptions
"""Former name."""


class StatusSink(Protocol):
    """Who writes what became of rows."""

    def write(self, changes: Mapping[int, tuple[Status, str]]) -> None:
        """Write status and uuid of some rows."""


class PlanObserver(Protocol):
    """Who hears what happens."""

    def line(self, name: str, text: str) -> None:
        """Hear a line that a run printed."""

    def say(self, text: str) -> None:
        """Hear a remark."""

    def became(self, row: PlanRow, status: Status, seconds: float) -> None:
        """Hear what became of a row, and how long it took."""


class PlanOutcome(NamedTuple):
    """What became of a plan.

    Attributes:
        rows: all of them, as they are now.
        ran: numbers of those that were begun.
        skipped: numbers of those that were not to be run.
        signal: that ended it early, 0 for none.
        seconds: elapsed.
    """

    rows: tuple[PlanRow, ...]
    ran: tuple[int, ...]
    skipped: tuple[int, ...]
    signal: int
    seconds: float

    @property
    def well(self) -> bool:
        """Whether every row is finished, but for those that run on another machine."""
        words = {
            row.status.word
            for row in self.rows
            if row.status.word != "RUNNING" or row.number not in self.skipped
        }
        return not self.signal and words <= {"FINISHED"}
