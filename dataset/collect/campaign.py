"""`Campaign`: one start of the collector, and the file that describes it."""

from __future__ import annotations

import os
import platform
import secrets
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dippm
from dippm.measure.collected.journal import write_campaign
from dippm.measure.protocol import Settings


@dataclass(slots=True)
class Campaign:
    """The request, the machine and the end of one start of the collector.

    Attributes:
        plan: part or file, seed, share, hash, jobs and points of the plan.
        device: the requested device.
        settings: settings of the measurement.
        timeout_s: time limit of a point.
        budget_s: time limit of the campaign; None for none.
        campaign: its name, a column of every row.
        machine: provenance, from the first worker.
        ended: "running", "finished", "budget", "limit", a signal, or an error; "killed" if the next
            start found it running.
        why: one line about the end.
        statuses: rows of this campaign by status.
        disturbed: number of measured rows that are not labels; the next start repeats their points.
        seconds: duration since the first point.
        left: points of the plan without an outcome at the end.
        done_before: points that had an outcome at the start, or are duplicates in the plan.
    """

    plan: Mapping[str, Any]
    device: str
    settings: Settings
    timeout_s: float
    budget_s: float | None
    campaign: str = field(default_factory=lambda: _name())
    command: list[str] = field(default_factory=lambda: _command())
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    collector_version: str = dippm.__version__
    commit: str | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    started_at: str = field(default_factory=lambda: _now())
    ended_at: str | None = None
    ended: str = "running"
    why: str = ""
    statuses: Counter[str] = field(default_factory=Counter)
    disturbed: int = 0
    seconds: float = 0.0
    left: int = 0
    done_before: int = 0

    @property
    def rows(self) -> int:
        """Number of rows of this campaign."""
        return sum(self.statuses.values())

    @property
    def per_minute(self) -> float:
        """Attempted rows per minute since the start, without skipped ones."""
        tried = self.rows - self.statuses["skipped"]
        return 60 * tried / self.seconds if self.seconds else 0.0

    def end(self, ended: str, why: str = "") -> None:
        """Record how it ended."""
        self.ended, self.why, self.ended_at = ended, why, _now()

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file."""
        counts = {"rows": self.rows, "rows_per_minute": round(self.per_minute, 1)}
        return asdict(self) | {"statuses": dict(self.statuses)} | counts

    def write(self, folder: Path) -> Path:
        """Write the file below an output folder, replacing an earlier one of this campaign.

        Raises:
            OSError: if it cannot be written.
        """
        return write_campaign(folder, self.campaign, self.to_dict())


def _command() -> list[str]:
    return ["python", "-m", "dataset.collect", *sys.argv[1:]]


def _name() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
