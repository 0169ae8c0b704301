"""A plan: a file, its rows, and where in the file their status stands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dippm.runs.plans.cells import Slots
from dippm.runs.plans.row import PlanRow
from dippm.runs.plans.workload import Workload, workloads

TABLES, SWEEPS = (".csv",), (".yml", ".yaml")


class Plan(NamedTuple):
    """A plan as it was read.

    Attributes:
        path: of the file, links resolved.
        data: its bytes.
        rows: in order, with what a status file beside it says.
        slots: by number of row; empty if the file has no place for a status.
    """

    path: Path
    data: bytes
    rows: tuple[PlanRow, ...]
    slots: Mapping[int, Slots]

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Rows that start together, in order."""
        return workloads(self.rows)

    @property
    def status_file(self) -> Path:
        """The file that holds the status of rows if the plan cannot."""
        return self.path.with_name(f"{self.path.name}.status.csv")


def is_plan(name: str) -> bool:
    """Return whether a name is that of a plan."""
    return name.casefold().endswith((*TABLES, *SWEEPS))
