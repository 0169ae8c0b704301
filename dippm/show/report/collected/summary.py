"""Summary of a collected set as data: counts, coverage, failures, noise, provenance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dippm.measure.collected.labels import noise_floor, why_not_used
from dippm.measure.collected.rows import Collected, Joined
from dippm.measure.columns import MEASURED

if TYPE_CHECKING:
    import pandas as pd

COUNTED = ("status", "kind", "phase", "precision", "mode", "device")
DISTRIBUTED = {"latency_ms": "ms", "energy_j": "J", "memory_mb": "MB", "power_w": "W"}
MACHINE = (
    "device",
    "device_kind",
    "device_memory_mb",
    "mig_profile",
    "driver",
    "cuda",
    "cudnn",
    "framework",
    "python",
    "host_cpu",
    "host_cores",
    "threads",
    "os",
    "collector_version",
    "commit",
)
PROTOCOL = (
    "timer",
    "warm_up_steps",
    "timed_steps",
    "energy_method",
    "energy_window_s",
    "energy_resolution_s",
    "memory_method",
    "memory_fresh_process",
)
NUMEROUS = 12


def summary(found: Collected, joined: Joined) -> dict[str, Any]:
    """Return the content of the page without the predictions, as JSON-ready data."""
    rows = found.rows
    used = used_rows(rows)
    floors, absent = noise_floor(rows)
    return {
        "folder": str(found.folder),
        "files": list(found.files),
        "notes": list(found.notes),
        "rows": len(rows),
        "rows_used": len(used),
        "families": int(rows["family"].nunique()),
        "architectures": int(rows["architecture"].nunique()),
        "models": int(rows["model"].nunique()),
        "configurations": int(rows["configuration_id"].nunique()),
        "measured_from": _text(rows["measured_at"].min()),
        "measured_to": _text(rows["measured_at"].max()),
        "days": int(rows["measured_at"].str[:10].nunique()),
        "counts": {name: _counts(rows[name]) for name in COUNTED},
        "coverage": coverage(used, joined),
        "distributions": distributions(used),
        "noise_floor": [floor.to_dict() for floor in floors],
        "noise_floor_absent": dict(absent),
        "left_out": _left_out(rows),
        "failures": failures(rows),
        "absent": absences(rows),
        "protocol": {name: _counts(rows[name][rows["status"] == "ok"]) for name in PROTOCOL},
        "machines": machines(rows),
        "campaigns": [dict(campaign) for campaign in found.campaigns],
    }


def used_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that serve as labels: measured without disturbance."""
    return rows[[why_not_used(row) is None for row in rows.to_dict("records")]]


def coverage(rows: pd.DataFrame, joined: Joined) -> dict[str, Any]:
    """Return the number of rows by family and decade of size.

    The size of a step is batch × multiply-accumulates where graphs are joined, else batch × numbers
    in one sample.
    """
    by_macs = bool(joined.totals)
    counts: Counter[tuple[str, int]] = Counter()
    unknown = 0
    for row in rows.to_dict("records"):
        size = _macs(row, joined) if by_macs else _input_numbers(row)
        if size is None or size <= 0:
            unknown += 1
        else:
            counts[str(row["family"]), math.floor(math.log10(size))] += 1
    decades = sorted({decade for _, decade in counts})
    span = list(range(decades[0], decades[-1] + 1)) if decades else []
    families = sorted({family for family, _ in counts})
    return {
        "size": "multiply-accumulates per step" if by_macs else "input numbers per step",
        "families": families,
        "decades": span,
        "rows": [[counts[family, decade] for decade in span] for family in families],
        "rows_without_size": unknown,
    }


def distributions(rows: pd.DataFrame) -> dict[str, Any]:
    """Return quantiles of each target, or the reason why they are absent."""
    found: dict[str, Any] = {}
    for target, unit in DISTRIBUTED.items():
        known = rows[target][rows[target] > 0]
        if known.empty:
            found[target] = {"absent": main_reason(rows, target)}
            continue
        quantiles = known.quantile([0, 0.05, 0.5, 0.95, 1]).tolist()
        names = ("min", "p05", "median", "p95", "max")
        found[target] = {"unit": unit, "n": len(known), **dict(zip(names, quantiles, strict=True))}
    return found


def failures(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return failed rows by status and reason, most frequent first."""
    failed = rows[rows["status"] != "ok"].fillna({"reason": "no reason recorded"})
    lines = []
    for (status, reason), part in failed.groupby(["status", "reason"]):
        families = sorted(part["family"].unique())
        lines.append({"status": status, "reason": reason, "rows": len(part), "families": families})
    return sorted(lines, key=lambda line: (-line["rows"], line["status"], line["reason"]))


def absences(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the measured columns that are null in successful rows, by reason."""
    good = rows[rows["status"] == "ok"]
    counts: Counter[tuple[str, str]] = Counter()
    for row in good.to_dict("records"):
        counts.update((row["absent"] or {}).items())
    lines = [
        {"column": column, "reason": reason, "rows": n}
        for (column, reason), n in counts.most_common()
        if column in MEASURED
    ]
    return sorted(lines, key=lambda line: MEASURED.index(str(line["column"])))


def main_reason(rows: pd.DataFrame, column: str) -> str:
    """Return the most frequent reason why a column is null."""
    reasons = Counter(
        row["absent"][column]
        for row in rows.to_dict("records")
        if row["absent"] and column in row["absent"]
    )
    return str(reasons.most_common(1)[0][0]) if reasons else "no row has it"


def machines(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the distinct machines and software versions, with their numbers of rows."""
    groups = Counter(tuple(_text(row[name]) for name in MACHINE) for row in rows.to_dict("records"))
    return [{**dict(zip(MACHINE, key, strict=True)), "rows": n} for key, n in groups.items()]


def _input_numbers(row: Mapping[Any, Any]) -> float | None:
    return float(row["batch"] * math.prod(row["sizes"])) if row["sizes"] else None


def _macs(row: Mapping[Any, Any], joined: Joined) -> float | None:
    totals = joined.totals.get(row["model"])
    return None if totals is None else float(totals["macs_per_sample"] * row["batch"])


def _left_out(rows: pd.DataFrame) -> dict[str, int]:
    reasons = Counter(why_not_used(row) for row in rows.to_dict("records"))
    return {reason: n for reason, n in reasons.most_common() if reason is not None}


def _counts(values: pd.Series[Any]) -> dict[str, int]:
    """Return the number of rows by value; the range if there are many distinct numbers."""
    known = values.dropna()
    counts = {_text(value): int(n) for value, n in known.value_counts().items()}
    if len(counts) > NUMEROUS and known.map(lambda v: isinstance(v, int | float)).all():
        return {f"{known.min():.4g} to {known.max():.4g}": len(known)}
    if len(known) < len(values):
        counts["not recorded"] = len(values) - len(known)
    return counts


def _text(value: Any) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
    return str(value)
