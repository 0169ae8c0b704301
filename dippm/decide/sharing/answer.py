"""`SharedGpu`: cost of several processes that share a GPU; `dippm.share` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dippm.base.answer import Answer
from dippm.base.printable import printable
from dippm.decide.sharing.ways import Way
from dippm.devices import Device, MigProfile
from dippm.estimate.models.targets import Interval
from dippm.estimate.prediction import Prediction

ENERGY_RULE = (
    "energy is attributed, no counter measures it: what a pass takes above idle is its own, and "
    "the board's idle power falls on each by its part of the GPU for as long as its pass takes"
)


@dataclass(frozen=True, slots=True)
class SharedProcess:
    """One process among those that share a GPU.

    Attributes:
        source: name of its model.
        batch: samples per pass.
        part: its part of the GPU in words: a slice, a percentage of the threads, "" for all.
        share: share of the board's idle power that is attributed to it, 0 to 1.
        alone: prediction of the process alone on the shared place.
        latency_ms: latency of a pass among the other processes.
        latency: 90 % interval if such sets were measured, else bounds with coverage 0.
        slowdown: `latency_ms` over the latency alone.
        slowdown_range: interval or bounds of `slowdown`, without the error of `alone`.
        memory_bound_mb: upper 99 % bound of its memory in MiB; None if it is not predicted.
        active_j: energy of a pass above idle; None, with the reason in `SharedGpu.absent`.
        idle_j: its share of the board's idle energy during a pass; likewise.
    """

    source: str
    batch: int
    part: str
    share: float
    alone: Prediction = field(repr=False)
    latency_ms: float
    latency: Interval
    slowdown: float
    slowdown_range: Interval
    memory_bound_mb: float | None
    active_j: float | None = None
    idle_j: float | None = None

    @property
    def samples_per_s(self) -> float:
        """Throughput of the process."""
        return 1e3 * self.batch / self.latency_ms

    @property
    def energy_j(self) -> float | None:
        """Energy of a pass that is attributed to the process; None if it is absent."""
        if self.active_j is None or self.idle_j is None:
            return None
        return self.active_j + self.idle_j

    def row(self) -> dict[str, Any]:
        """Return a flat mapping, as JSON-ready data."""
        energy_j = self.energy_j
        return {
            "source": self.source,
            "batch": self.batch,
            "part": self.part or None,
            "share": self.share,
            "alone_ms": self.alone.latency_ms,
            "latency_ms": self.latency_ms,
            "latency_ms_low": self.latency.low,
            "latency_ms_high": self.latency.high,
            "slowdown": self.slowdown,
            "slowdown_low": self.slowdown_range.low,
            "slowdown_high": self.slowdown_range.high,
            "samples_per_s": self.samples_per_s,
            "memory_mb": self.alone.memory_mb,
            "memory_bound_mb": self.memory_bound_mb,
            "energy_j": energy_j,
            "energy_per_sample_j": None if energy_j is None else energy_j / self.batch,
            "active_j": self.active_j,
            "idle_j": self.idle_j,
        }


@dataclass(frozen=True, slots=True)
class SharedGpu(Answer):
    """Processes that share a GPU, or a slice of it.

    Attributes:
        device: the GPU.
        mig: the slice that all processes share; None for the GPU.
        sharing: "time-slicing", "mps", or "mig" for one slice per process.
        conditions: precision, mode and phase in a few words.
        processes: the processes in the order given.
        measured: whether such sets were measured, so that `latency` is an interval.
        why_bounds: why `latency` is bounds instead; "" if it is an interval.
        misfits: why the set does not fit the memory; empty if it does.
        idle_w: idle power of the board; None if it is not known.
        power_w: mean power of the board with all processes; None if it is not predicted.
        absent: reason for each quantity that is None.
        warnings: warnings of the predictions, and of the set.
    """

    device: Device
    mig: MigProfile | None
    sharing: Way
    conditions: str
    processes: tuple[SharedProcess, ...]
    measured: bool
    why_bounds: str
    misfits: tuple[str, ...]
    idle_w: float | None
    power_w: float | None
    absent: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        """Whether all processes fit the memory together, each at its 99 % bound."""
        return not self.misfits

    @property
    def samples_per_s(self) -> float:
        """Total throughput."""
        return sum(process.samples_per_s for process in self.processes)

    @property
    def memory_bound_mb(self) -> float | None:
        """Sum of the 99 % bounds in MiB; None if one is not predicted."""
        bounds = [process.memory_bound_mb for process in self.processes]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)

    @property
    def capacity_mb(self) -> int:
        """Memory in MiB that all share, or that each slice has."""
        return self.mig.memory_mb if self.mig else self.device.memory_mb

    @property
    def unattributed_idle_w(self) -> float | None:
        """Idle power of the unused part of the board; None if it is not known."""
        if self.idle_w is None:
            return None
        return self.idle_w * max(0.0, 1.0 - sum(process.share for process in self.processes))

    @property
    def title(self) -> str:
        """GPU, sharing and conditions in one printable line."""
        place = f"{self.device.name}, slice {self.mig}" if self.mig else self.device.name
        several = f"{len(self.processes)} processes"
        return printable(" · ".join((place, self.sharing, several, self.conditions)))

    @property
    def footer(self) -> str:
        """The checkpoints that answered, in one printable line."""
        names = dict.fromkeys(p.alone.provenance.checkpoint for p in self.processes)
        return printable(", ".join(names))

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per process."""
        return [process.row() for process in self.processes]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {
            "device": self.device.name,
            "mig": self.mig and self.mig.name,
            "sharing": self.sharing,
            "conditions": self.conditions,
            "feasible": self.feasible,
            "misfits": list(self.misfits),
            "measured": self.measured,
            "why_bounds": self.why_bounds or None,
            "samples_per_s": self.samples_per_s,
            "memory_bound_mb": self.memory_bound_mb,
            "capacity_mb": self.capacity_mb,
            "power_w": self.power_w,
            "idle_w": self.idle_w,
            "unattributed_idle_w": self.unattributed_idle_w,
            "energy_rule": ENERGY_RULE,
            "processes": self.rows(),
            "absent": dict(self.absent),
            "warnings": list(self.warnings),
        }
