"""One configuration, measured: the protocol from warm-up to the columns of a row.

    forget caches → first call → warm up until settled → timed steps → memory peaks → energy window

Everything that could not be had stands in "absent" with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from dippm.measure import context, memory
from dippm.measure.counters import Counters
from dippm.measure.energy_phase import energy_columns, no_energy
from dippm.measure.protocol import Regime, Settings
from dippm.measure.provenance import machine
from dippm.measure.readings import Absent
from dippm.measure.regimes import flags, prepared
from dippm.measure.state import StateWatch, host_load
from dippm.measure.timers import latency_columns
from dippm.measure.timing import CudaStopwatch, Step, stopwatch, time_queued, time_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class Bench:
    """A device with its counters, kept open over many measurements.

    Args:
        device: where modules run.
        settings: how often and how long.

    Attributes:
        context_mb: memory of this process on a GPU before its first model.
    """

    def __init__(self, device: torch.device, settings: Settings | None = None) -> None:
        self.device, self.settings = device, settings or Settings()
        if device.type == "cuda":
            context.open_context(device)  # it is part of what idles
        self.counters = Counters(device)
        self.context_mb = (
            context.context_mb(device, self.counters.used, self.counters.processes)
            if device.type == "cuda"
            else memory.NO_GPU
        )
        self._fresh = True

    def close(self) -> None:
        """Close the counters."""
        self.counters.close()

    def memory_mb(self) -> float | Absent:
        """Return the memory in use now, in MiB: call it before a model is built."""
        memory.forget(self.device)
        return memory.in_use_mb(self.device, self.counters.used)

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
        state = StateWatch(self.counters.state)
        timings = time_steps(step, watch, self.settings, between=state.look)
        point = self.counters.point.read()
        columns = {
            **latency_columns(timings),
            **memory.peaks(self.device, point.get("memory_used_mb"), self.context_mb),
            "memory_method": memory.method(self.device),
            "memory_fresh_process": fresh,
            **state.columns(),
            "power_cap_w": point.get("power_cap_w"),
            "other_processes": self.counters.processes.read().get("other_processes"),
            "host_load": host_load(),
            **machine(self.device),
            "flags": flags(),
        }
        queued_ms = median(timings.wall_ms)
        if isinstance(watch, CudaStopwatch):
            columns["queued_ms"] = queued_ms = time_queued(step, watch, step_ms=queued_ms)
        else:
            columns["queued_ms"] = Absent("steps on a CPU do not overlap")
        on_gpu = self.device.type == "cuda"
        if not with_energy or self.settings.energy_window_s <= 0:
            return {**columns, **no_energy(Absent("not asked for"), on_gpu=on_gpu)}
        window = energy_columns(
            step, watch, self.counters, self.settings, queued_ms=queued_ms, on_gpu=on_gpu
        )
        return {**columns, **window}


def as_row(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with None for what is absent, and the reasons under "absent"."""
    reasons = {n: v.reason for n, v in columns.items() if isinstance(v, Absent)}
    values = {n: None if isinstance(v, Absent) else v for n, v in columns.items()}
    return {**values, "absent": reasons}
