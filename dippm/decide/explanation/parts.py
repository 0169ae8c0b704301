"""The parts of a prediction outside its operators, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from dippm.estimate.models.host import Host, wall_ms
from dippm.estimate.models.targets import MemoryParts
from dippm.estimate.prediction import Prediction

PARTS = {
    "optimizer": "the update of the parameters",
    "host": "the GPU waits for launches",
    "input copy": "from the host to the device",
    "residual": "the whole minus all of the above",
}


@dataclass(frozen=True, slots=True)
class LatencyPart:
    """A part of the latency outside operators.

    Attributes:
        name: one of PARTS.
        time_ms: time of the part; 0 if it does not occur.
        share: time_ms / latency.
        energy_j: energy of the part; None if not predicted.
    """

    name: str
    time_ms: float
    share: float
    energy_j: float | None


def parts_of(
    prediction: Prediction, latency_ms: float, absent: Mapping[str, str]
) -> tuple[LatencyPart, ...]:
    """Return the wait for the host, the copy of the inputs, and the residual."""
    rows = prediction.operators
    kernels_ms = sum(cost.time_ms for cost in rows if cost.node is not None)
    update = [cost for cost in rows if cost.node is None and cost.op != "host"]
    host_ms = sum(cost.time_ms for cost in rows if cost.op == "host" and cost.node is None)
    update_ms = sum(cost.time_ms for cost in update)
    copy_ms, host = 0.0, prediction.host
    if host is not None and prediction.conditions.timer == "wall+copy":
        wall = wall_ms(kernels_ms + update_ms, host.launches, Host(host.launch_us / 1e3, 1.0))
        copy_ms = min(host_ms, max(0.0, latency_ms - wall))
        host_ms -= copy_ms
    times = {"optimizer": update_ms, "host": host_ms, "input copy": copy_ms}
    energies: dict[str, float | None] = dict.fromkeys(PARTS)
    whole = prediction.energy_j
    if whole is not None and "energy_j" not in absent:
        waiting = sum(c.energy_j or 0.0 for c in rows if c.op == "host" and c.node is None)
        per_ms = waiting / (host_ms + copy_ms) if host_ms + copy_ms > 0 else 0.0
        energies["optimizer"] = sum(cost.energy_j or 0.0 for cost in update)
        energies |= {"host": per_ms * host_ms, "input copy": per_ms * copy_ms}
        known = sum(cost.energy_j or 0.0 for cost in rows if cost.node is not None)
        energies["residual"] = whole - known - sum(e for e in energies.values() if e is not None)
    times["residual"] = latency_ms - kernels_ms - sum(times.values())
    return tuple(LatencyPart(n, times[n], times[n] / latency_ms, energies[n]) for n in PARTS)


def memory_by_part(parts: MemoryParts) -> dict[str, float]:
    """Return the parts of the memory in MB by name; they sum to the whole."""
    names = [f.name for f in fields(parts) if f.name.endswith("_mb") and f.name != "context_sd_mb"]
    found = {name: getattr(parts, name) for name in names}
    return {name.removesuffix("_mb"): float(size) for name, size in found.items()}
