"""Energy of one step, measured while it repeats without pause.

A counter that is updated every tenth of a second cannot resolve a step of a millisecond. So the
step is repeated, the window begins and ends at an update of the counter, and

    energy per step = (energy between the two updates / time between them) · time per step

holds wherever the steps lie relative to the updates. Without an energy counter, the mean of power
readings replaces the quotient. Fewer than ten updates give no result.

Reading must not stall the device: a reading of NVML takes milliseconds, as long as many steps. So a
thread reads, and the next batch of steps is queued before waiting for the previous one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

from dippm.measure.protocol import Settings
from dippm.measure.readings import Absent, Source
from dippm.measure.timing import Step, Stopwatch

POLL_S = 0.02
"""Seconds between two reads of the counter; a batch of steps is queued for about this long."""
ENDS_POLL_S = 0.002
"""Seconds between two reads near the ends of a window, which limit its error."""
ENDS_S = 0.1
"""Time before the requested end of a window with short pauses: an update of NVML's counter."""
METHODS = {
    "energy_j": "NVML total energy counter",
    "power_instant_w": "mean of NVML's instant power readings",
    "power_w": "mean of NVML power readings",
}
"""Quantities for a GPU's energy, best first: power_w is a mean over a second on Hopper."""
READS = 5
"""Number of readings that measure the cost of one."""
READ_SHARE = 0.2
"""Largest share of a core for reading the counter."""
LEAST_UPDATES = 10
LONGEST_WINDOW = 3.0
"""Longest window, in requested lengths, to wait for enough updates of the counter."""


@dataclass(frozen=True, slots=True)
class Meter:
    """A source of energy readings.

    Attributes:
        source: source with the quantity.
        quantity: name of an energy counter in J, or else of a power in W.
        method: name in results.
    """

    source: Source
    quantity: str
    method: str

    @property
    def counts(self) -> bool:
        """Whether it is an energy counter."""
        return self.quantity.endswith("_j")

    def read(self) -> tuple[float, float | None]:
        """Return the time in s and the energy in J or power in W; None if the reading failed."""
        readings = self.source.read()
        return readings.time_ns / 1e9, readings.values.get(self.quantity)


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of one window.

    Attributes:
        energy_j: gross energy of one step.
        power_w: mean power over the window.
        window_s: time from the first to the last update of the counter.
        window_error_s: largest error of that time.
        steps: number of steps in the whole loop.
        step_ms: mean time of a step in the loop, where steps follow each other without pause.
        method: name of the counter.
        resolution_s: median time between two updates of the counter.
        read_ms: duration of one reading.
    """

    energy_j: float
    power_w: float
    window_s: float
    window_error_s: float
    steps: int
    step_ms: float
    method: str
    resolution_s: float
    read_ms: float


@dataclass(frozen=True, slots=True)
class _Update:
    """A change of a reading between two reads, taken at their middle ± half the pause."""

    at_s: float
    error_s: float
    value: float


@dataclass(slots=True)
class _Track:
    """The changes of a reading."""

    updates: list[_Update] = field(default_factory=list)
    last: float | None = None
    looked_s: float = 0.0

    def add(self, at_s: float, value: float | None) -> None:
        if value is None:
            return
        if self.last not in (None, value):  # the age of the first value is unknown
            error_s = (at_s - self.looked_s) / 2
            self.updates.append(_Update(at_s - error_s, error_s, value))
        self.last, self.looked_s = value, at_s

    @property
    def covered_s(self) -> float:
        return self.updates[-1].at_s - self.updates[0].at_s if self.updates else 0.0


class _Reader(threading.Thread):
    """Reads the counter until it is stopped; NVML's calls release the interpreter lock."""

    def __init__(
        self, meter: Meter, meanwhile: Callable[[], object], *, window_s: float, read_s: float
    ) -> None:
        super().__init__(name="dippm-energy", daemon=True)
        self.track = _Track()
        self.error: Exception | None = None
        self._meter, self._meanwhile, self._window_s = meter, meanwhile, window_s
        self._far_s = max(POLL_S, read_s / READ_SHARE)
        self._near_s = min(self._far_s, max(ENDS_POLL_S, read_s))
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.track.add(*self._meter.read())
                self._meanwhile()
                self._stopped.wait(self.pause_s)
        except Exception as error:  # kept, so that the steps end too and report it
            self.error = error

    @property
    def pause_s(self) -> float:
        """Seconds until the next read: short where the window begins or may end."""
        updates, looked_s = self.track.updates, self.track.looked_s
        if updates and looked_s - updates[0].at_s < self._window_s - ENDS_S:
            return self._far_s
        return self._near_s

    def stop(self) -> None:
        """Stop after a last reading.

        Raises:
            Exception: error of a reading.
        """
        self._stopped.set()
        self.join()
        if self.error is not None:
            raise self.error


def find_meter(nvml: Source, rapl: Source, *, on_gpu: bool) -> Meter | Absent:
    """Return the meter of a device, or the reason why there is none."""
    if not on_gpu:
        readings = rapl.read()
        if "package_energy_j" in readings.values:
            return Meter(rapl, "package_energy_j", "RAPL package counter")
        return Absent(readings.absent.get("package_energy_j", "no RAPL"))
    readings = nvml.read()
    for quantity, method in METHODS.items():
        if quantity in readings.values:
            return Meter(nvml, quantity, method)
    return Absent(readings.absent.get("energy_j", "no NVML"))


def measure_energy(
    step: Step,
    watch: Stopwatch,
    meter: Meter,
    settings: Settings,
    *,
    queued_ms: float,
    meanwhile: Callable[[], object] = lambda: None,
) -> Energy | Absent:
    """Repeat a step for a window and return its energy, or the reason why there is none.

    Args:
        step: one forward pass, or one training step.
        watch: stopwatch of the device.
        meter: see `find_meter`.
        settings: length of the window.
        queued_ms: approximate time of a step that is queued without synchronisation.
        meanwhile: called at every read of the counter, in another thread.
    """
    read_s = _read_cost(meter)
    queued = max(1, round(1000 * POLL_S / max(queued_ms, 1e-3)))
    reader = _Reader(meter, meanwhile, window_s=settings.energy_window_s, read_s=read_s)
    in_flight: deque[Callable[[], object]] = deque()
    steps = 0
    begin = time.monotonic()
    reader.start()
    try:
        while reader.is_alive() and not _is_enough(
            reader.track, time.monotonic() - begin, settings.energy_window_s
        ):
            for _ in range(queued):
                step()
            steps += queued
            in_flight.append(watch.mark())
            if len(in_flight) > 1:  # the device works on one batch while the host waits for another
                in_flight.popleft()()
        watch.finish()
        seconds = time.monotonic() - begin
    finally:
        reader.stop()
    return _result(reader.track, meter, steps=steps, seconds=seconds, read_s=read_s)


def _read_cost(meter: Meter) -> float:
    """Return the duration of a reading, in s."""
    costs = []
    for _ in range(READS):
        begin = time.perf_counter()
        meter.read()
        costs.append(time.perf_counter() - begin)
    return median(costs)


def idle_power(meter: Meter, seconds: float) -> float | Absent:
    """Return the mean idle power in W, or the reason why there is none."""
    track, powers = _Track(), []
    begin = time.monotonic()
    while (elapsed := time.monotonic() - begin) < 4 * seconds:
        at_s, value = meter.read()
        track.add(at_s, value)
        powers += [value] if value is not None else []
        if elapsed >= seconds and (not meter.counts or len(track.updates) > 2):
            break
        time.sleep(0.01)
    if not meter.counts:
        return fmean(powers) if powers else Absent("the power could not be read")
    if len(track.updates) < 2:
        return Absent(f"the counter was not updated twice in {4 * seconds:g} s")
    return (track.updates[-1].value - track.updates[0].value) / track.covered_s


def _is_enough(track: _Track, elapsed_s: float, window_s: float) -> bool:
    if elapsed_s > LONGEST_WINDOW * window_s:
        return True
    return track.covered_s >= window_s and len(track.updates) > LEAST_UPDATES


def _result(
    track: _Track, meter: Meter, *, steps: int, seconds: float, read_s: float
) -> Energy | Absent:
    updates = track.updates
    if len(updates) <= LEAST_UPDATES:
        return Absent(
            f"{meter.method} was updated {len(updates)} times in {seconds:.1f} s, "
            f"fewer than {LEAST_UPDATES + 1}"
        )
    first, last, window_s = updates[0], updates[-1], track.covered_s
    if meter.counts:
        power_w = (last.value - first.value) / window_s
    else:
        power_w = fmean(update.value for update in updates)
    gaps = [later.at_s - sooner.at_s for sooner, later in pairwise(updates)]
    step_s = seconds / steps  # of the whole loop: the window need not begin or end with a step
    return Energy(
        energy_j=power_w * step_s,
        power_w=power_w,
        window_s=window_s,
        window_error_s=first.error_s + last.error_s + read_s,
        steps=steps,
        step_ms=1000 * step_s,
        method=meter.method,
        resolution_s=median(gaps),
        read_ms=1000 * read_s,
    )
