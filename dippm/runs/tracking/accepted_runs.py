"""Accepted runs as rows of a collected set, from which checkpoints are trained.

A row describes what ran, not what was expected to run: the run itself must record batch and
precision. A run is one row, however often it is accepted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm import __version__
from dippm.errors import RunError
from dippm.estimate.prediction import LABELS
from dippm.measure.collected.store import Store, read_rows
from dippm.measure.columns import COLUMNS, MEASURED, SCHEMA_VERSION
from dippm.measure.readings import Absent
from dippm.runs.tracking.run_comparison import COMPARED, DOCUMENT, RunComparison

if TYPE_CHECKING:
    from dippm.runs.store.stored_run import StoredRun

NEEDED = ("batch", "precision")
FAMILY = "own"
CAMPAIGN = "accepted-runs"
LOCK = "collector.lock"
NOT_TAKEN = "a tracked run has no such phase"


def accept(
    folder: Path, run: StoredRun, comparison: RunComparison, prediction: Mapping[str, Any]
) -> bool:
    """Append a run to a collected set; return False if it is already there.

    Args:
        folder: folder of the set, created if missing; it should hold rows of one device only.
        run: run of the store.
        comparison: comparison of the run.
        prediction: prediction that the run was compared with.

    Raises:
        RunError: if the run does not record its batch and precision, or the set is being written.
        DippmError: if the set cannot be written.
    """
    untold = [name for name in NEEDED if name not in comparison.told]
    if untold:
        raise RunError(
            f"run {run.uuid[:8]} did not tell its {' and '.join(untold)}: it is no row",
            'Tell what runs: run.params({"batch": 32, "precision": "fp32"}), or as params of it.',
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(f"somebody writes to {folder} now", "Try again later.") from error
        before = list(read_rows(folder))
        row = row_of(run, comparison, prediction)
        same = [old for old in before if old["configuration_id"] == row["configuration_id"]]
        if any(old["row_id"] == row["row_id"] for old in same):
            return False
        row["repeat"] = 1 + max((old["repeat"] for old in same), default=-1)
        store = Store(folder, say=lambda text: None)
        try:
            store.append(row)
        finally:
            store.close()
    return True


def row_of(
    run: StoredRun, comparison: RunComparison, prediction: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a run as a row with all columns of `dippm.measure.columns`."""
    asked, steps, figures = prediction["conditions"], comparison.steps, comparison.figures
    row: dict[str, Any] = dict.fromkeys(column.name for column in COLUMNS)
    model = str(prediction.get("model") or prediction["source"])
    sizes = prediction.get("input")
    identity = _hash(model, json.dumps(sizes), json.dumps(asked, sort_keys=True))
    row |= {
        "row_id": _hash(identity, run.uuid),
        "configuration_id": identity,
        "campaign": CAMPAIGN,
        "schema_version": SCHEMA_VERSION,
        "collector_version": __version__,
        "measured_at": datetime.fromtimestamp(run.wall_ns / 1e9, UTC).isoformat(timespec="seconds"),
        "kind": "model",
        "family": FAMILY,
        "model": model,
        "architecture": model,
        "parameters": {"run": run.uuid},
        "sizes": sizes,
        "phase": asked["phase"],
        "batch": asked["batch"],
        "precision": asked["precision"],
        "mode": asked["mode"],
        "channels_last": asked["channels_last"],
        "repeat": 0,
        "status": "ok",
        "timer": "wall",
        "latency_ms": steps.mean_ms,
        "latency_median_ms": steps.median_ms,
        "latency_sd_ms": steps.spread_ms,
        "latency_min_ms": min(steps.times_ms),
        "latency_p95_ms": steps.p95_ms,
        "latencies_ms": list(steps.times_ms),
        "warm_up_steps": steps.warm_up,
        "timed_steps": len(steps.times_ms),
        "energy_method": figures.methods["energy_j"],
        "memory_method": figures.methods["memory_mb"],
        **_machine(run, asked),
    }
    if steps.event_ms:
        row |= {"event_ms": sum(steps.event_ms) / len(steps.event_ms)}
        row |= {"events_ms": list(steps.event_ms)}
    absent = {}
    for name in ("memory_mb", "energy_j", "power_w"):
        value = getattr(figures, name)
        if isinstance(value, Absent):
            absent[name] = value.reason
        else:
            row[name] = value
    row["absent"] = absent | {n: NOT_TAKEN for n in MEASURED if row[n] is None and n not in absent}
    return row


def _machine(run: StoredRun, asked: Mapping[str, Any]) -> dict[str, Any]:
    environment = run.start.environment
    packages = dict(
        line.split("==", 1) for line in environment.get("packages", "").splitlines() if "==" in line
    )
    torch = packages.get("torch")
    cores = environment.get("host_cores", "")
    return {
        "device": asked["device"],
        "device_kind": "cpu" if str(asked["device"]).startswith("CPU") else "cuda",
        "mig_profile": asked["mig"],
        "driver": environment.get("driver"),
        "framework": f"torch {torch}" if torch else None,
        "libraries": packages,
        "host_cpu": environment.get("host_cpu"),
        "host_cores": int(cores) if re.fullmatch(r"\d+", cores) else None,
        "os": environment.get("os"),
        "commit": environment.get("git_commit"),
    }


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


# Coverage: whether recent measurements lie inside the predicted intervals.


LAST = 50
LEAST_HELD = 0.8
LEAST_COMPARISONS = 10
"""Below this, three misses of 90 % intervals would already raise an alarm."""
HINT = "Train or calibrate on what was accepted: `dippm compare-run RUN --accept FOLDER`."


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of the latest intervals of one quantity.

    Attributes:
        target: name of the quantity.
        comparisons: number of latest comparisons, `LAST` at most.
        held: number of these with the measured value inside the interval.
    """

    target: str
    comparisons: int
    held: int

    @property
    def warning(self) -> str:
        """Warning about the intervals; "" if their coverage is sufficient."""
        if self.comparisons < LEAST_COMPARISONS or self.held >= LEAST_HELD * self.comparisons:
            return ""
        return (
            f"90 % intervals of the {LABELS[self.target]} held {self.held} of the last "
            f"{self.comparisons} comparisons, fewer than {LEAST_HELD:.0%}"
        )


def coverage(runs: Iterable[StoredRun]) -> tuple[Coverage, ...]:
    """Return the coverage of intervals for each compared quantity.

    Args:
        runs: runs of the store, newest first; those without a comparison are skipped.
    """
    seen: dict[str, list[float]] = {target: [] for target in COMPARED}
    for run in runs:
        for target, inside in seen.items():
            said = run.metrics.get(f"{DOCUMENT}/{target}/inside")
            if said is not None and len(inside) < LAST:
                inside.append(said)
    return tuple(Coverage(t, len(inside), int(sum(inside))) for t, inside in seen.items() if inside)
