"""What the rows of a machine will lack: said with the first one, while there is time to mend it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dippm.measure.run import NOT_ASKED

LABELS = ("memory_mb", "energy_j", "sm_clock_mhz", "kernel_ms")
"""Labels and what explains them, which a GPU has if its driver and its profiler can be asked."""


def lacking(row: Mapping[str, Any]) -> list[str]:
    """Return a line for each reason why a row of a GPU lacks some of `LABELS`."""
    if row["device_kind"] != "cuda":
        return []
    names: dict[str, list[str]] = {}
    for name in LABELS:
        reason = row["absent"].get(name)
        if reason and reason != NOT_ASKED.reason:
            names.setdefault(reason, []).append(name)
    return [f"rows lack {', '.join(some)}: {reason}" for reason, some in names.items()]
