"""One configuration, measured: the protocol from warm-up to the columns of a row.

    forget caches → warm up until settled → timed steps → memory peaks → energy window

Everything that could not be had stands in "absent" with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median, quantiles, stdev
from typing import TYPE_CHECKING, Any

from dippm.measure import energy, memory
from dippm.measure.columns import ENERGY
from dippm.measure.protocol import Regime, Settings
from dippm.measure.provenance import machine
from dippm.measure.readings import Absent, AbsentSource, Quantity, Source
from dippm.measure.regimes import flags, prepared
from dippm.measure.sources import gpm, nvml, nvml_processes
from dippm.measure.sources.registry import open_source
from dippm.measure.state import StateWatch
from dippm.measure.timing import (
    CudaStopwatch,
    Step,
    Stopwatch,
    Timings,
    stopwatch,
    time_queued,
    time_steps,
)
from dippm.progress import tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

ON_A_CPU = "measured on a CPU"
TOO_SHORT = Absent("the window was too short")
GPM = ("sm_active_percent", "sm_occupancy_percent", "tensor_active_percent", "dram_active_percent")
LOAD_NAMES = ("utilization_percent", *GPM)
ENERGY_NAMES = tuple(column.name for column in ENERGY)


class Bench:
    """A device with its counters, kept open over many measurements.

    Args:
        device: where modules run.
        settings: how often and how long.

    Attributes:
        idle_power_w: of the device with this process on it, before its first measurement.
    """

    def __init__(self, device: torch.device, settings: Settings | None = None) -> None:
        import torch

        self.device, self.settings = device, settings or Settings()
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.zeros(1, device=device)  # the context is part of what idles
        self.nvml = _of_gpu("nvml", device, nvml.QUANTITIES)
        self.processes = _of_gpu("nvml_processes", device, nvml_processes.QUANTITIES)
        self.gpm = _of_gpu("gpm", device, gpm.QUANTITIES)
        self._power = _of_gpu("nvml", device, nvml.QUANTITIES, only=("energy_j", "power_w"))
        self._rapl = open_source("rapl")
        self._fresh = True
        self.meter = energy.find_meter(self._power, self._rapl, on_gpu=device.type == "cuda")
        self.idle_power_w = (
            energy.idle_power(self.meter, self.settings.idle_s)
            if isinstance(self.meter, energy.Meter)
            else self.meter
        )

    def close(self) -> None:
        """Close the counters."""
        for source in (self.nvml, self.processes, self.gpm, self._power, self._rapl):
            source.close()

    def memory_mb(self) -> float | Absent:
        """Return the memory in use now, in MiB: call it before a model is built."""
        memory.forget(self.device)
        return memory.in_use_mb(self.device, self.nvml)

    def measure(
        self,
        module: torch.nn.Module,
        inputs: Sequence[torch.Tensor],
        regime: Regime,
        *,
        with_energy: bool = True,
        memory_before_mb: float | Absent | None = None,
    ) -> dict[str, Any]:
        """Measure one configuration.

        Args:
            module: on the device; its precision, layout and mode are changed as the regime says.
            inputs: on the device, batch included, in the order of `forward`; cast in place.
            regime: how it runs.
            with_energy: whether the energy window is spent.
            memory_before_mb: what `memory_mb` said before the module was built.

        Returns:
            Columns of `dippm.measure.columns` from timer to provenance, and "absent": reason by
            column without a value.

        Raises:
            ConditionsError: if the device cannot run the regime.
            torch.OutOfMemoryError: and whatever else the module raises.
        """
        with prepared(module, inputs, regime, device=self.device) as step:
            memory.forget(self.device)  # what other types and layouts took is not the model's
            columns = self.measure_step(step, with_energy=with_energy)
        before = Absent("nobody looked") if memory_before_mb is None else memory_before_mb
        return as_row({**columns, "memory_before_mb": before})

    def measure_step(self, step: Step, *, with_energy: bool) -> dict[str, Any]:
        """Measure any callable that is one step on the device; columns are values or `Absent`."""
        fresh, self._fresh = self._fresh, False
        watch = stopwatch(self.device)
        state = StateWatch(self.nvml, self.processes)
        timings = time_steps(step, watch, self.settings, between=state.look)
        columns = {
            **_latency(timings),
            **memory.peaks(self.device, self.nvml),
            "memory_method": memory.method(self.device),
            "memory_fresh_process": fresh,
            **state.columns(),
            **machine(self.device),
            "flags": flags(),
        }
        step_ms = median(timings.wall_ms)
        if isinstance(watch, CudaStopwatch):
            columns["queued_ms"] = step_ms = time_queued(step, watch, step_ms=step_ms)
        else:
            columns["queued_ms"] = Absent("steps on a CPU do not overlap")
        return {**columns, **self._energy(step, watch, step_ms, wanted=with_energy)}

    def _energy(
        self, step: Step, watch: Stopwatch, queued_ms: float, *, wanted: bool
    ) -> dict[str, Any]:
        if isinstance(self.meter, Absent):
            return self._no_energy(self.meter)
        if not wanted or self.settings.energy_window_s <= 0:
            return self._no_energy(Absent("not asked for"))
        tell(f"measuring energy for {self.settings.energy_window_s:g} s")
        load = _LoadWatch(self.nvml)
        self.gpm.read()  # GPM answers for the time between two readings
        seen = energy.measure_energy(
            step, watch, self.meter, self.settings, queued_ms=queued_ms, meanwhile=load.look
        )
        active = self.gpm.read()
        if isinstance(seen, Absent):
            return self._no_energy(seen)
        return {
            **_energy_columns(seen, self.idle_power_w),
            **{name: active.get(name) for name in GPM},
            "utilization_percent": load.mean(),
        }

    def _no_energy(self, reason: Absent) -> dict[str, Any]:
        of_gpu = reason if self.device.type == "cuda" else Absent(ON_A_CPU)
        return {**dict.fromkeys(ENERGY_NAMES, reason), **dict.fromkeys(LOAD_NAMES, of_gpu)}


def _of_gpu(
    name: str, device: torch.device, quantities: tuple[Quantity, ...], **where: Any
) -> Source:
    if device.type != "cuda":
        return AbsentSource(name, quantities, ON_A_CPU)
    return open_source(name, device=str(device), **where)


@dataclass(slots=True)
class _LoadWatch:
    """Mean utilisation over a window, read at most ten times a second."""

    nvml: Source
    total: float = 0.0
    count: int = 0
    due: float = 0.0
    reason: Absent = TOO_SHORT

    def look(self) -> None:
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + 0.1
        value = self.nvml.read().get("utilization_percent")
        if isinstance(value, Absent):
            self.reason = value
        else:
            self.total, self.count = self.total + value, self.count + 1

    def mean(self) -> float | Absent:
        return self.total / self.count if self.count else self.reason


def _latency(timings: Timings) -> dict[str, Any]:
    wall, events = timings.wall_ms, timings.event_ms
    no_events = Absent("no CUDA events on this device")
    return {
        "timer": "wall",
        "latency_ms": fmean(wall),
        "latency_median_ms": median(wall),
        "latency_sd_ms": stdev(wall) if len(wall) > 1 else Absent("one step only"),
        "latency_min_ms": min(wall),
        "latency_p95_ms": (
            quantiles(wall, n=20, method="inclusive")[-1]
            if len(wall) > 1
            else Absent("one step only")
        ),
        "latencies_ms": list(wall),
        "event_ms": fmean(events) if events else no_events,
        "event_median_ms": median(events) if events else no_events,
        "events_ms": list(events) if events else no_events,
        "first_call_ms": timings.warm_up.first_call_ms,
        "warm_up_steps": timings.warm_up.steps,
        "warm_up_settled": timings.warm_up.settled,
        "timed_steps": len(wall),
    }


def _energy_columns(seen: energy.Energy, idle_power_w: float | Absent) -> dict[str, Any]:
    net = idle_power_w
    if not isinstance(net, Absent):
        net = seen.energy_j - net * seen.step_ms / 1000
    return {
        "energy_j": seen.energy_j,
        "energy_net_j": net,
        "power_w": seen.power_w,
        "idle_power_w": idle_power_w,
        "energy_window_s": seen.window_s,
        "energy_steps": seen.steps,
        "energy_method": seen.method,
        "energy_resolution_s": seen.resolution_s,
        "energy_read_ms": seen.read_ms,
    }


def as_row(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with None for what is absent, and the reasons under "absent"."""
    reasons = {n: v.reason for n, v in columns.items() if isinstance(v, Absent)}
    values = {n: None if isinstance(v, Absent) else v for n, v in columns.items()}
    return {**values, "absent": reasons}
