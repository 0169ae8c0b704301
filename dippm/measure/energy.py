"""Energy of one step, from a window in which the step runs without pause.

A counter that is updated every tenth of a second says nothing about a step of a millisecond. So
the steps are repeated, the window begins and ends at an update of the counter, and

    energy per step = (energy between the two updates / time between them) · time per step

holds however the steps fall between the updates. Where there is no energy counter, the mean of
power readings stands for the quotient. Fewer than ten updates give no figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

from dippm.measure.protocol import Settings
from dippm.measure.readings import Absent, Source
from dippm.measure.timing import Step

POLL_S = 0.02
"""Steps are queued for about this long between two looks at the counter."""
LEAST_UPDATES = 10
LONGEST_WINDOW = 3.0
"""A window may last so many times as long as asked for, until the counter was updated enough."""


@dataclass(frozen=True, slots=True)
class Meter:
    """Where energy is read.

    Attributes:
        source: that has the quantity.
        quantity: an energy counter in J, or else a power in W.
        method: how results name it.
    """

    source: Source
    quantity: str
    method: str

    @property
    def counts(self) -> bool:
        """Whether it is an energy counter."""
        return self.quantity.endswith("_j")

    def read(self) -> float | None:
        """Return J so far, or W now; None if the reading failed."""
        return self.source.read().values.get(self.quantity)


@dataclass(frozen=True, slots=True)
class Energy:
    """What a window said.

    Attributes:
        energy_j: of one step, gross.
        power_w: mean over the window.
        window_s: from the first update of the counter to the last.
        steps: that ran in the whole loop.
        step_ms: mean time of a step in the loop, where steps follow each other without pause.
        method: counter that it comes from.
        resolution_s: median time between two updates of the counter.
    """

    energy_j: float
    power_w: float
    window_s: float
    steps: int
    step_ms: float
    method: str
    resolution_s: float


@dataclass(slots=True)
class _Track:
    """Changes of a reading: (time in s, value)."""

    updates: list[tuple[float, float]] = field(default_factory=list)
    last: float | None = None

    def add(self, value: float | None) -> None:
        if value is None or value == self.last:
            return
        if self.last is not None:  # the first value is of unknown age
            self.updates.append((time.monotonic(), value))
        self.last = value


def find_meter(nvml: Source, rapl: Source, *, on_gpu: bool) -> Meter | Absent:
    """Return the meter of a device, or the reason why it has none."""
    if not on_gpu:
        readings = rapl.read()
        if "package_energy_j" in readings.values:
            return Meter(rapl, "package_energy_j", "RAPL package counter")
        return Absent(readings.absent.get("package_energy_j", "no RAPL"))
    readings = nvml.read()
    if "energy_j" in readings.values:
        return Meter(nvml, "energy_j", "NVML total energy counter")
    if "power_w" in readings.values:
        return Meter(nvml, "power_w", "mean of NVML power readings")
    return Absent(readings.absent.get("energy_j", "no NVML"))


def measure_energy(
    step: Step,
    finish: Callable[[], None],
    meter: Meter,
    settings: Settings,
    *,
    step_ms: float,
    meanwhile: Callable[[], object] = lambda: None,
) -> Energy | Absent:
    """Repeat a step for a window and return its energy, or the reason why there is none.

    Args:
        step: one forward pass, or one training step.
        finish: waits until the device has done everything.
        meter: see `find_meter`.
        settings: how long.
        step_ms: about how long a step takes.
        meanwhile: called at every look at the counter.
    """
    queued = max(1, round(1000 * POLL_S / max(step_ms, 1e-3)))
    track, steps = _Track(), 0
    begin = now = time.monotonic()
    while not _is_enough(track, now - begin, settings.energy_window_s):
        for _ in range(queued):
            step()
        finish()
        steps += queued
        track.add(meter.read())
        meanwhile()
        now = time.monotonic()
    return _result(track, meter, steps=steps, seconds=now - begin)


def idle_power(meter: Meter, seconds: float) -> float | Absent:
    """Return the mean power while nothing runs, in W, or the reason why there is none."""
    track, powers = _Track(), []
    begin = time.monotonic()
    while (elapsed := time.monotonic() - begin) < 4 * seconds:
        value = meter.read()
        track.add(value)
        powers += [value] if value is not None else []
        if elapsed >= seconds and (not meter.counts or len(track.updates) > 2):
            break
        time.sleep(0.01)
    if not meter.counts:
        return fmean(powers) if powers else Absent("the power could not be read")
    if len(track.updates) < 2:
        return Absent(f"the counter was not updated twice in {4 * seconds:g} s")
    (first_s, first_j), (last_s, last_j) = track.updates[0], track.updates[-1]
    return (last_j - first_j) / (last_s - first_s)


def _is_enough(track: _Track, elapsed_s: float, window_s: float) -> bool:
    if elapsed_s > LONGEST_WINDOW * window_s:
        return True
    updates = track.updates
    covered_s = updates[-1][0] - updates[0][0] if updates else 0.0
    return covered_s >= window_s and len(updates) > LEAST_UPDATES


def _result(track: _Track, meter: Meter, *, steps: int, seconds: float) -> Energy | Absent:
    updates = track.updates
    if len(updates) <= LEAST_UPDATES:
        return Absent(
            f"{meter.method} was updated {len(updates)} times in {seconds:.1f} s, "
            f"fewer than {LEAST_UPDATES + 1}"
        )
    window_s = updates[-1][0] - updates[0][0]
    if meter.counts:
        power_w = (updates[-1][1] - updates[0][1]) / window_s
    else:
        power_w = fmean(value for _, value in updates)
    gaps = [later[0] - sooner[0] for sooner, later in pairwise(updates)]
    step_s = seconds / steps
    return Energy(
        energy_j=power_w * step_s,
        power_w=power_w,
        window_s=window_s,
        steps=steps,
        step_ms=1000 * step_s,
        method=meter.method,
        resolution_s=median(gaps),
    )
