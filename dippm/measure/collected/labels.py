"""The rule that decides which rows are training labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DISTURBING = ("thermal", "slowdown", "brake")
"""Parts of the names of throttle reasons that make a GPU slower than it is on its own. The power
cap is not among them: it is the GPU's normal operation."""

UNSTEADY = 0.2
"""Largest relative standard deviation on a CPU, which has no list of other processes: beyond it,
the steps shared the machine."""


def why_not_used(row: Mapping[Any, Any]) -> str | None:
    """Return why a row is not a label, or None if it is one.

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
