"""A report on the first row of a machine and its missing columns, while they can be fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dippm.measure.collected.labels import why_not_used
from dippm.measure.run import NOT_ASKED

LABELS = ("memory_mb", "energy_j", "sm_clock_mhz", "kernel_ms")
"""Labels and related columns that a GPU has if its driver and profiler are accessible."""
SHOWN = {
    "latency_ms": "ms",
    "kernel_ms": "ms of kernels",
    "energy_j": "J",
    "memory_mb": "MiB",
    "sm_clock_mhz": "MHz",
}


def first_row(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the first measured row: values, memory counters, other processes."""
    asked = f"{row['model']} batch {row['batch']} {row['precision']} {row['phase']}"
    values = [f"{row[name]:,.4g} {unit}" for name, unit in SHOWN.items() if row[name] is not None]
    where = ", ".join(filter(None, (row["device"], row["driver"] and f"driver {row['driver']}")))
    yield f"first row: {asked} on {where}, {row['framework']}: {', '.join(values)}"
    yield from _memory(row)
    if reason := why_not_used(row):
        yield f"it is no label, and no row will be while that lasts: {reason}"
    if row["other_processes"]:
        yield (
            "nvidia-smi names the other process; in a container with process ids of its own it may "
            "be one that runs elsewhere: start the container with --pid=host"
        )
    yield from missing_labels(row)


def _memory(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the NVML memory counters: version 1 includes the driver's share, version 2 does not."""
    used, driver = row["memory_nvml_mb"], row["memory_driver_mb"]
    if used is None:
        return
    counted = f"{used:,.0f} MiB used by NVML's first version, the second is not to be had"
    if driver is not None:
        both = f"{used + driver:,.0f} MiB used by NVML's first version, {used:,.0f} by its second"
        counted = f"{both}, which is without what the driver keeps for itself"
    context = row["memory_context_mb"]
    own = "" if context is None else f"; context {context:,.0f} MiB"
    yield f"memory of the board: {counted}{own}; memory_mb is the {row['memory_method']}"


def missing_labels(row: Mapping[str, Any]) -> list[str]:
    """Return a line per reason why a row of a GPU lacks some of `LABELS`."""
    if row["device_kind"] != "cuda":
        return []
    names: dict[str, list[str]] = {}
    for name in LABELS:
        reason = row["absent"].get(name)
        if reason and reason != NOT_ASKED.reason:
            names.setdefault(reason, []).append(name)
    return [f"rows lack {', '.join(some)}: {reason}" for reason, some in names.items()]
