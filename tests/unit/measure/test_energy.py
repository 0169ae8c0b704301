"""The arithmetic of the energy window, on counters whose true power is known."""

import math
import threading
import time

import pytest

from dippm.measure.energy import (
    ENDS_POLL_S,
    POLL_S,
    Energy,
    Meter,
    _Reader,
    _Track,
    find_meter,
    idle_power,
    measure_energy,
)
from dippm.measure.protocol import Settings
from dippm.measure.readings import Absent, AbsentSource, Quantity, Readings
from dippm.measure.timing import HostStopwatch

QUANTITIES = (
    Quantity("energy_j", "J", "device", "", counter=True),
    Quantity("power_w", "W", "device", ""),
)


class SteppedCounter:
    """A device of constant power whose counters are updated every `period_s`, as real ones are."""

    name, quantities = "nvml", QUANTITIES

    def __init__(self, power_w: float, period_s: float, *, has_energy: bool = True) -> None:
        self.power_w, self.period_s, self.has_energy = power_w, period_s, has_energy
        self.begin = time.monotonic()

    def read(self) -> Readings:
        now_ns = time.monotonic_ns()
        ticks = math.floor((now_ns / 1e9 - self.begin) / self.period_s)
        # A real sensor never says the same power twice: the noise makes its updates visible.
        values = {"power_w": self.power_w + 1e-6 * ticks}
        if self.has_energy:
            values["energy_j"] = self.power_w * ticks * self.period_s
        absent = {q.name: "not supported" for q in QUANTITIES if q.name not in values}
        return Readings(now_ns, values, absent)

    def close(self) -> None:
        pass


def meter(source: SteppedCounter) -> Meter:
    found = find_meter(source, AbsentSource("rapl", (), "no RAPL"), on_gpu=True)
    assert isinstance(found, Meter)
    return found


def run(source: SteppedCounter, window_s: float) -> Energy | Absent:
    settings = Settings(energy_window_s=window_s)
    return measure_energy(
        lambda: time.sleep(0.002), HostStopwatch(), meter(source), settings, queued_ms=2.0
    )


def test_energy_of_a_step_is_power_times_its_time():
    seen = run(SteppedCounter(250.0, 0.02), 0.6)
    assert isinstance(seen, Energy)
    assert seen.power_w == pytest.approx(250.0, rel=0.15)
    assert seen.energy_j == pytest.approx(seen.power_w * seen.step_ms / 1000)
    assert seen.step_ms >= 2.0
    assert seen.window_s >= 0.6
    assert seen.method == "NVML total energy counter"


def test_the_ends_of_a_window_are_looked_at_closely_and_their_doubt_is_said():
    """True times of the updates are known here: multiples of the period."""
    source = SteppedCounter(250.0, 0.05)
    seen = run(source, 0.6)
    assert isinstance(seen, Energy)
    periods = round(seen.window_s / source.period_s)
    assert abs(seen.window_s - periods * source.period_s) <= seen.window_error_s
    reader = _Reader(meter(source), lambda: None, window_s=2.0, read_s=0.0005)
    assert reader.pause_s == ENDS_POLL_S, "no update yet"
    for at_s, value in ((10.0, 1.0), (10.1, 2.0), (11.9, 3.0)):
        reader.track.add(at_s, value)
    assert reader.pause_s == POLL_S
    reader.track.add(11.97, 3.0)
    assert reader.pause_s == ENDS_POLL_S


@pytest.mark.parametrize(("read_s", "far_s", "near_s"), [(0.003, 0.02, 0.003), (0.1, 0.5, 0.1)])
def test_a_slow_counter_does_not_take_a_whole_core(read_s, far_s, near_s):
    reader = _Reader(meter(SteppedCounter(1.0, 1.0)), lambda: None, window_s=9.0, read_s=read_s)
    assert reader.pause_s == near_s
    for at_s, value in ((10.0, 1.0), (10.1, 2.0)):
        reader.track.add(at_s, value)
    assert reader.pause_s == pytest.approx(far_s)


def test_an_update_lies_between_two_looks():
    track = _Track()
    for at_s, value in ((0.0, 1.0), (1.0, 1.0), (1.5, None), (2.0, 3.0), (2.25, 4.0)):
        track.add(at_s, value)
    assert [(u.at_s, u.error_s, u.value) for u in track.updates] == [
        (1.5, 0.5, 3.0),
        (2.125, 0.125, 4.0),
    ]
    assert track.covered_s == 0.625


def test_the_window_grows_until_the_counter_was_updated_often_enough():
    seen = run(SteppedCounter(100.0, 0.05), 0.2)
    assert isinstance(seen, Energy)
    assert seen.window_s > 0.4


def test_a_counter_too_slow_for_the_window_gives_a_reason_and_no_figure():
    seen = run(SteppedCounter(100.0, 0.2), 0.1)
    assert isinstance(seen, Absent)
    assert "fewer than 11" in seen.reason


def test_without_an_energy_counter_power_readings_stand_in_and_say_so():
    seen = run(SteppedCounter(80.0, 0.02, has_energy=False), 0.4)
    assert isinstance(seen, Energy)
    assert seen.method == "mean of NVML power readings"
    assert seen.power_w == pytest.approx(80.0, rel=0.01)


def test_the_instant_power_is_preferred_to_a_mean_over_a_second():
    class Hopper(SteppedCounter):
        def read(self):
            said = super().read()
            instant = {"power_instant_w": said.values["power_w"] + 20.0}
            return Readings(said.time_ns, {**said.values, **instant}, said.absent)

    seen = run(Hopper(80.0, 0.02, has_energy=False), 0.4)
    assert isinstance(seen, Energy)
    assert seen.method == "mean of NVML's instant power readings"
    assert seen.power_w == pytest.approx(100.0, rel=0.01)


def test_idle_power_comes_from_the_same_meter():
    assert idle_power(meter(SteppedCounter(60.0, 0.02)), 0.2) == pytest.approx(60.0, rel=0.3)


def test_a_machine_without_counters_has_a_reason():
    nothing = AbsentSource("nvml", QUANTITIES, "no NVIDIA driver here")
    found = find_meter(nothing, AbsentSource("rapl", (), "no RAPL"), on_gpu=True)
    assert found == Absent("no NVIDIA driver here")


class PatientCounter(SteppedCounter):
    """Its first reading amid steps ends when `wanted` more of them were queued."""

    def __init__(self, wanted: int) -> None:
        super().__init__(100.0, 0.01)
        self.wanted, self.steps, self.reads_before = wanted, 0, 0
        self.overlapped: bool | None = None
        self.changed = threading.Condition()

    def step(self) -> None:
        with self.changed:
            self.steps += 1
            self.changed.notify_all()
        time.sleep(0)  # steps shall not be fewer where the machine is busy

    def read(self) -> Readings:
        with self.changed:
            if self.steps == 0:
                self.reads_before += 1
            elif self.overlapped is None:
                enough = self.steps + self.wanted
                self.overlapped = self.changed.wait_for(lambda: self.steps >= enough, timeout=10)
        return super().read()


def test_steps_go_on_while_the_counter_is_read():
    source = PatientCounter(wanted=100)
    settings = Settings(energy_window_s=0.2)
    measure_energy(source.step, HostStopwatch(), meter(source), settings, queued_ms=1.0)
    assert source.overlapped is True


def test_what_a_reading_costs_is_measured_before_the_first_step():
    source = PatientCounter(wanted=1)
    found = meter(source)
    source.reads_before = 0
    settings = Settings(energy_window_s=0.2)
    seen = measure_energy(source.step, HostStopwatch(), found, settings, queued_ms=1.0)
    assert isinstance(seen, Energy)
    assert source.reads_before >= 5
    assert seen.read_ms > 0


def test_the_next_batch_is_queued_before_the_last_one_is_waited_for():
    log: list[str] = []

    class Marking(HostStopwatch):
        def mark(self):
            number = log.count("mark")
            log.append("mark")
            return lambda: log.append(f"wait {number}")

    def step():
        log.append("step")
        time.sleep(0.001)

    settings = Settings(energy_window_s=0.2)
    measure_energy(step, Marking(), meter(SteppedCounter(100.0, 0.01)), settings, queued_ms=4.0)
    batch = ["step"] * 5 + ["mark"]  # 20 ms of queued time
    assert log[:19] == [*batch, *batch, "wait 0", *batch]
    assert log[19] == "wait 1"


def test_an_error_of_the_counter_ends_the_window():
    class Broken(SteppedCounter):
        def read(self):
            if threading.current_thread() is not threading.main_thread():
                raise ZeroDivisionError
            return super().read()

    with pytest.raises(ZeroDivisionError):
        run(Broken(100.0, 0.01), 0.2)
