"""A row: the request, its outcome, and the machine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dippm
from dataset.families.family import Workload
from dataset.plan.configuration import Point, configuration_id
from dippm.measure.collected.kernels import KEY as KERNELS
from dippm.measure.collected.kernels import pack_kernels
from dippm.measure.columns import COLUMNS, MEASURED, PROVENANCE, SCHEMA_VERSION, Status

NAMES = tuple(column.name for column in COLUMNS)
UNSAID = "the measurement did not report it"


@dataclass(frozen=True, slots=True)
class PointOutcome:
    """The outcome of a point.

    Attributes:
        point: the requested point.
        status: see `dippm.measure.columns.Status`.
        reason: reason for a missing measurement; empty if there is one.
        columns: measured values and provenance.
        while_building: whether the model itself could not be built.
    """

    point: Point
    status: Status
    reason: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    while_building: bool = False


def make_row(campaign: str, kind: str, workload: Workload, outcome: PointOutcome) -> dict[str, Any]:
    """Return a row with every column; unknown values are None.

    A kernel table, if any, is part of the row in the journal, see `dippm.measure.collected`.
    """
    point = outcome.point
    identity = configuration_id(workload, point)
    row = dict.fromkeys(NAMES)
    row |= {name: value for name, value in outcome.columns.items() if name in row}
    row |= {
        "row_id": _hash(identity, str(point.repeat), campaign),
        "configuration_id": identity,
        "campaign": campaign,
        "schema_version": SCHEMA_VERSION,
        "collector_version": dippm.__version__,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "kind": kind,
        "family": workload.family,
        "model": workload.model,
        "architecture": workload.architecture,
        "parameters": dict(workload.parameters),
        "sizes": list(workload.sizes),
        "phase": point.phase,
        "batch": point.batch,
        "precision": point.precision,
        "mode": point.mode,
        "channels_last": point.channels_last,
        "repeat": point.repeat,
        "status": outcome.status,
        "reason": outcome.reason or None,
    }
    return _with_reasons(row, outcome)


def machine_columns(machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that describe the machine, which failed rows have as well."""
    return {column.name: machine.get(column.name) for column in PROVENANCE}


def _with_reasons(row: dict[str, Any], outcome: PointOutcome) -> dict[str, Any]:
    absent = dict(outcome.columns.get("absent") or {})
    for name, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            row[name], absent[name] = None, f"{value} was measured"
    if outcome.status == "ok":
        absent |= {n: UNSAID for n in MEASURED if row[n] is None and n not in absent}
    row["absent"] = absent
    if kernels := outcome.columns.get(KERNELS):
        row[KERNELS] = pack_kernels(kernels)
    return row


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
