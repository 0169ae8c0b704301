"""Measure one configuration: the protocol from warm-up to the columns of a row.

    forget caches → first call → warm up until settled → timed steps → memory peaks
    → queued steps → cold steps (operators) → energy window → profiled step

Every value that is missing has its reason in "absent".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from dippm.base.process import is_out_of_memory
from dippm.base.progress import tell
from dippm.measure import context, energy, memory
from dippm.measure.columns import ENERGY
from dippm.measure.context import ON_A_CPU, Counters
from dippm.measure.kernels import TracedKernel, kernel_ms
from dippm.measure.kernels.profile import profile_step
from dippm.measure.protocol import Regime, Settings
from dippm.measure.provenance import machine
from dippm.measure.readings import Absent
from dippm.measure.regimes import flags, prepare_step
from dippm.measure.sources.nvml_session import driver_memory_mb
from dippm.measure.state import BUSY, StateWatch, host_load
from dippm.measure.timing import (
    COLD_NAMES,
    NO_ROOM,
    NOT_COLD,
    CudaStopwatch,
    Step,
    Stopwatch,
    cold_columns,
    displacer,
    latency_columns,
    stopwatch,
    time_queued,
    time_steps,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

NOT_ASKED = Absent("not asked for")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure besides time and memory.

    Attributes:
        energy: whether to spend an energy window.
        kernels: whether to profile a step.
        cold: whether to time steps with cold caches too, for operators, which fit into them.
    """

    energy: bool = True
    kernels: bool = True
    cold: bool = False


class Bench:
    """A device with its counters, kept open over many measurements.

    Args:
        device: device on which modules run.
        settings: numbers of steps and lengths of windows.

    Attributes:
        driver_mb: memory that the driver reserves.
        context_mb: memory of this process on a GPU before its first model, without that.
    """

    def __init__(self, device: torch.device, settings: Settings | None = None) -> None:
        self.device, self.settings = device, settings or Settings()
        if device.type == "cuda":
            context.open_context(device)  # idle power includes the context
        self.counters = Counters(device)
        self.driver_mb: float | Absent = memory.NO_GPU
        self.context_mb: float | Absent = memory.NO_GPU
        if device.type == "cuda":
            self.driver_mb = driver_memory_mb(str(device))
            counted_mb = context.context_mb(device, self.counters.used, self.counters.processes)
            self.context_mb = memory.without_driver(counted_mb, self.driver_mb)
        self._fresh = True

    def close(self) -> None:
        """Close the counters."""
        self.counters.close()

    def memory_mb(self) -> float | Absent:
        """Return the memory in use now, in MiB: call it before a model is built."""
        memory.forget(self.device)
        return memory.in_use_mb(self.device, self.counters.used, self.driver_mb)

    def measure(
        self,
        module: torch.nn.Module,
        inputs: Sequence[torch.Tensor],
        regime: Regime,
        *,
        wanted: Wanted | None = None,
        memory_before_mb: float | Absent | None = None,
    ) -> dict[str, Any]:
        """Measure one configuration.

        Args:
            module: module on the device; its precision, layout and mode are changed to the regime.
            inputs: inputs on the device, batch included, in the order of `forward`; cast in place.
            regime: conditions of the run.
            wanted: measurements besides time and memory.
            memory_before_mb: result of `memory_mb` before the module was built.

        Returns:
            Columns of `dippm.measure.columns` from timer to provenance; "absent": reasons by
            column; "kernels": the kernel table as JSON-ready rows, see
            `kernels.TracedKernel`, empty if there is none.

        Raises:
            ConditionsError: if the device cannot run the regime.
            torch.OutOfMemoryError: and any other error of the module.
        """
        with prepare_step(module, inputs, regime, device=self.device) as step:
            memory.forget(self.device)  # memory of earlier types and layouts is not the model's
            marks = module if regime.mode == "eager" else None
            columns = self.measure_step(step, wanted=wanted or Wanted(), module=marks)
        before = Absent("nobody looked") if memory_before_mb is None else memory_before_mb
        return as_row({**columns, "memory_before_mb": before})

    def measure_step(
        self, step: Step, *, wanted: Wanted, module: torch.nn.Module | None = None
    ) -> dict[str, Any]:
        """Measure any callable that is one step on the device; columns are values or `Absent`.

        Args:
            step: callable that runs the step.
            wanted: measurements besides time and memory.
            module: module whose submodules mark their calls in the profiled step, if possible.
        """
        fresh, self._fresh = self._fresh, False
        watch = stopwatch(self.device)
        state = StateWatch(self.counters.state)
        timings = time_steps(step, watch, self.settings, between=state.look)
        point = self.counters.point.read()
        columns = {
            **latency_columns(timings),
            **memory.peaks(
                self.device,
                memory.without_driver(point.get("memory_used_mb"), self.driver_mb),
                self.context_mb,
                self.driver_mb,
            ),
            "memory_method": memory.method(self.device, self.driver_mb),
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
        cold, profile_cold = self._cold(step, watch, wanted)
        energy = self._energy(step, watch, queued_ms, wanted=wanted)
        return {**columns, **cold, **energy, **self._kernels(step, wanted, module, profile_cold)}

    def _cold(
        self, step: Step, watch: Stopwatch, wanted: Wanted
    ) -> tuple[dict[str, Any], Callable[[], object] | Absent]:
        """Return the columns of cold steps, and the function that evicts caches, or the reason."""
        try:
            displace = displacer(self.device) if wanted.cold else NOT_COLD
            if not isinstance(displace, Absent):
                columns = cold_columns(step, watch, displace, self.settings.timed_steps)
                return columns, displace
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            displace = NO_ROOM  # what was timed before remains valid
        return dict.fromkeys(COLD_NAMES, displace), displace

    def _energy(
        self, step: Step, watch: Stopwatch, queued_ms: float, *, wanted: Wanted
    ) -> dict[str, Any]:
        on_gpu = self.device.type == "cuda"
        if not wanted.energy or self.settings.energy_window_s <= 0:
            return no_energy(NOT_ASKED, on_gpu=on_gpu)
        return energy_columns(
            step, watch, self.counters, self.settings, queued_ms=queued_ms, on_gpu=on_gpu
        )

    def _kernels(
        self,
        step: Step,
        wanted: Wanted,
        module: torch.nn.Module | None,
        displace: Callable[[], object] | Absent,
    ) -> dict[str, Any]:
        seen: Seen = NOT_ASKED
        cold: Seen = displace if isinstance(displace, Absent) else seen
        if wanted.kernels:
            seen = kernels_of(step, self.device, module)
            if not isinstance(displace, Absent):
                cold = kernels_of(step, self.device, module, before=displace)
        rows = () if isinstance(seen, Absent) else seen
        return {
            **kernel_columns(seen, self.device),
            "cold_kernel_ms": cold if isinstance(cold, Absent) else kernel_ms(cold),
            "kernels": [kernel.to_dict() for kernel in rows],
        }


def as_row(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with None for absent values, and the reasons under "absent"."""
    reasons = {n: v.reason for n, v in columns.items() if isinstance(v, Absent)}
    values = {n: None if isinstance(v, Absent) else v for n, v in columns.items()}
    return {**values, "absent": reasons}


# The profiled step of a point, after everything that is timed: kernels and their columns.


METHODS = {
    "cuda": "kernels of one profiled step, by CUPTI",
    "cpu": "operators of one profiled step, each without those inside",
}
KERNEL_NAMES = ("kernel_ms", "kernel_launches", "kernel_method")
NONE_SEEN = Absent("the profiler saw no kernel: CUPTI is missing, or its counters are restricted")
Seen = tuple[TracedKernel, ...] | Absent


def kernels_of(
    step: Step,
    device: torch.device,
    module: torch.nn.Module | None,
    *,
    before: Callable[[], object] = lambda: None,
) -> Seen:
    """Return the kernels of one step, or the reason for none: the timed row remains valid.

    See `profile_step` for the arguments.
    """
    try:
        kernels = profile_step(step, device, module=module, before=before)
    except Exception as error:  # of the profiler, or for lack of its additional memory
        words = (str(error).strip().splitlines() or [""])[0][:200]
        return Absent(f"the profiled step failed: {type(error).__name__}: {words}")
    return kernels or NONE_SEEN


def kernel_columns(kernels: Seen, device: torch.device) -> dict[str, Any]:
    """Return the columns of a kernel table, each a value or `Absent`."""
    if isinstance(kernels, Absent):
        return dict.fromkeys(KERNEL_NAMES, kernels)
    values = (kernel_ms(kernels), len(kernels), METHODS[device.type])
    return dict(zip(KERNEL_NAMES, values, strict=True))


# The energy window of a point: idle before, steps without pause, idle after; its columns.


PHASE = "energy_"
GPM = ("sm_active_percent", "sm_occupancy_percent", "tensor_active_percent", "dram_active_percent")
LOAD = (BUSY, *GPM)
LOOK_S = 0.1
"""Seconds between two readings of clocks and temperature."""


def energy_columns(
    step: Step,
    watch: Stopwatch,
    counters: Counters,
    settings: Settings,
    *,
    queued_ms: float,
    on_gpu: bool,
) -> dict[str, Any]:
    """Spend an energy window, and return its columns, each a value or `Absent`.

    Args:
        step: one forward pass, or one training step.
        watch: stopwatch of the device.
        counters: counters of the device.
        settings: lengths of windows.
        queued_ms: approximate time of a step that is queued without synchronisation.
        on_gpu: whether the device is a GPU.
    """
    if isinstance(counters.meter, Absent):
        return no_energy(counters.meter, on_gpu=on_gpu)
    tell(f"measuring energy for {settings.energy_window_s:g} s")
    before_w = counters.idle_power_w(settings.idle_s)
    state = StateWatch(counters.busy, PHASE, pause_s=LOOK_S)
    counters.gpm.read()  # GPM reports on the time between two readings
    seen = energy.measure_energy(
        step, watch, counters.meter, settings, queued_ms=queued_ms, meanwhile=state.look
    )
    active = counters.gpm.read()
    after_w = counters.idle_power_w(settings.idle_s)
    if isinstance(seen, Absent):
        return no_energy(seen, on_gpu=on_gpu)
    return {
        **_of_window(seen, before_w, after_w),
        **state.columns(),
        **{name: active.get(name) for name in GPM},
        BUSY: state.mean(BUSY),
    }


def no_energy(reason: Absent, *, on_gpu: bool) -> dict[str, Any]:
    """Return every column of an energy window as absent."""
    of_gpu = reason if on_gpu else Absent(ON_A_CPU)
    return {**{column.name: reason for column in ENERGY}, **dict.fromkeys(LOAD, of_gpu)}


def _of_window(
    seen: energy.Energy, before_w: float | Absent, after_w: float | Absent
) -> dict[str, Any]:
    idle = [w for w in (before_w, after_w) if not isinstance(w, Absent)]
    net = seen.energy_j - fmean(idle) * seen.step_ms / 1000 if idle else before_w
    return {
        "energy_j": seen.energy_j,
        "energy_net_j": net,
        "power_w": seen.power_w,
        "idle_power_w": before_w,
        "idle_power_after_w": after_w,
        "energy_window_s": seen.window_s,
        "energy_window_error_s": seen.window_error_s,
        "energy_steps": seen.steps,
        "energy_method": seen.method,
        "energy_resolution_s": seen.resolution_s,
        "energy_read_ms": seen.read_ms,
    }
