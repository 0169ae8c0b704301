"""The energy window of one point: idle before, steps without pause, idle after; its columns."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from dippm.base.progress import tell
from dippm.measure import energy
from dippm.measure.columns import ENERGY
from dippm.measure.counters import ON_A_CPU, Counters
from dippm.measure.protocol import Settings
from dippm.measure.readings import Absent
from dippm.measure.state import BUSY, StateWatch
from dippm.measure.timing import Step, Stopwatch

PHASE = "energy_"
GPM = ("sm_active_percent", "sm_occupancy_percent", "tensor_active_percent", "dram_active_percent")
LOAD = (BUSY, *GPM)
LOOK_S = 0.1
"""Between two looks at clocks and heat."""


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
        watch: of the device that the step runs on.
        counters: of the device.
        settings: how long.
        queued_ms: about how long a step takes among others that nobody waits for.
        on_gpu: whether the device is one.
    """
    if isinstance(counters.meter, Absent):
        return no_energy(counters.meter, on_gpu=on_gpu)
    tell(f"measuring energy for {settings.energy_window_s:g} s")
    before_w = counters.idle_power_w(settings.idle_s)
    state = StateWatch(counters.busy, PHASE, pause_s=LOOK_S)
    counters.gpm.read()  # GPM answers for the time between two readings
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
