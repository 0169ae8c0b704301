"""A plan: a file, its rows, and the cells with their status."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dippm.runs.plans.cells import Slots
from dippm.runs.plans.row import PlanRow
from dippm.runs.plans.workload import Workload, workloads

TABLES, SWEEPS = (".csv",), (".yml", ".yaml")


class Plan(NamedTuple):
    """A plan as read from its file.

    Attributes:
        path: path of the file, links resolved.
        data: content of the file.
        rows: rows in order, with the status from a status file beside the plan.
        slots: cells of each row's status by number; empty if the file has no columns for it.
    """

    path: Path
    data: bytes
    rows: tuple[PlanRow, ...]
    slots: Mapping[int, Slots]

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Groups of rows that start together, in order."""
        return workloads(self.rows)

    @property
    def status_file(self) -> Path:
        """File that holds the status of rows if the plan cannot."""
        return self.path.with_name(f"{self.path.name}.status.csv")


def is_plan(name: str) -> bool:
    """Return whether a file name is that of a plan."""
    return name.casefold().endswith((*TABLES, *SWEEPS))
