"""Training labels in measured rows: which rows are usable, and the noise floor of their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

DISTURBING = ("thermal", "slowdown", "brake")
"""Parts of the names of throttle reasons that make a measurement unusable.

The power cap is not among them, because it belongs to a GPU's normal operation.
"""

UNSTEADY = 0.2
"""Largest relative standard deviation of the steps on a CPU.

A CPU has no list of other processes; with a larger deviation, the steps shared the machine.
"""


def why_not_used(row: Mapping[Any, Any]) -> str | None:
    """Return the reason why a row is not a training label; None if it is one.

    Failed, skipped and disturbed rows stay in the data; training leaves them out with this reason.
    """
    if row["status"] != "ok":
        return str(row["status"])
    if row["other_processes"] and row["other_processes"] > 0:
        return "disturbed: other processes on the device"
    reasons = row["throttle_reasons"] or ()
    slowed = sorted(r for r in reasons if any(part in str(r).casefold() for part in DISTURBING))
    if slowed:
        return f"disturbed: throttled ({', '.join(slowed)})"
    latency, spread = row["latency_ms"], row["latency_sd_ms"]
    if latency is None or not latency > 0:
        return "no latency"
    if row["device_kind"] == "cpu" and spread and spread > UNSTEADY * latency:
        return f"disturbed: steps spread by more than {UNSTEADY:.0%} of their mean"
    return None


# Noise floor: the spread between repeats of one configuration.
#
# A difference below the noise floor is not significant. Repeats are rows of one configuration on
# one device; their spread is the sample standard deviation over the mean.


TARGETS = ("latency_ms", "energy_j", "memory_mb")
ALL_FAMILIES = "all"


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The spread of one target between repeats.

    Attributes:
        target: name of the target, such as "latency_ms".
        family: name of the family; "all" for all families together.
        configurations: number of configurations with at least two repeats of the target.
        rows: number of repeats of these configurations.
        median_percent: median over configurations of the relative spread, in %.
        p95_percent: 95th percentile over configurations of the relative spread, in %.
        days: number of different days (UTC) among the rows.
        campaigns: number of different campaigns of the collector among the rows.
    """

    target: str
    family: str
    configurations: int
    rows: int
    median_percent: float
    p95_percent: float
    days: int
    campaigns: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready data."""
        return asdict(self)


def noise_floor(rows: pd.DataFrame) -> tuple[list[NoiseFloor], Mapping[str, str]]:
    """Return the noise floors over all families and by family, and reasons for missing targets.

    Args:
        rows: rows as `collected` reads them; failed and disturbed ones are skipped.
    """
    usable = rows[[why_not_used(row) is None for row in rows.to_dict("records")]]
    floors, absent = [], {}
    for target in TARGETS:
        known = usable[usable[target] > 0]
        keys = ["configuration_id", "device"]
        repeats = known[known.groupby(keys)["row_id"].transform("count") > 1]
        if known.empty:
            absent[target] = "no row has it"
        elif repeats.empty:
            absent[target] = "no configuration was measured twice"
        else:
            floors.append(_floor(repeats, target, ALL_FAMILIES))
            floors += [_floor(part, target, str(f)) for f, part in repeats.groupby("family")]
    return floors, absent


def _floor(rows: pd.DataFrame, target: str, family: str) -> NoiseFloor:
    groups = rows.groupby(["configuration_id", "device"])[target]
    spread = 100 * groups.std(ddof=1) / groups.mean()
    return NoiseFloor(
        target=target,
        family=family,
        configurations=len(spread),
        rows=len(rows),
        median_percent=float(spread.median()),
        p95_percent=float(spread.quantile(0.95)),
        days=int(rows["measured_at"].str[:10].nunique()),
        campaigns=int(rows["campaign"].nunique()),
    )
