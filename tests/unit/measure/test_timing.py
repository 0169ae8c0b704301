import pytest

from dippm.measure.protocol import Settings
from dippm.measure.timing import HostStopwatch, time_steps


class ScriptedWatch(HostStopwatch):
    """A stopwatch whose times are known beforehand; steps are counted, not timed."""

    def __init__(self, *walls_ms: float) -> None:
        self.walls_ms = list(walls_ms)

    def __call__(self, step):
        step()
        return (self.walls_ms.pop(0) if len(self.walls_ms) > 1 else self.walls_ms[0]), None


def test_the_protocol_of_the_seed_is_five_warm_ups_and_thirty_timed_steps():
    calls = []
    settings = Settings(settle_s=0.0)
    timings = time_steps(lambda: calls.append(1), HostStopwatch(), settings)
    assert len(timings.wall_ms) == 30
    assert timings.event_ms == ()
    assert len(calls) == timings.warm_up_steps + 30
    assert timings.warm_up_steps >= 5


def test_the_warm_up_goes_on_until_two_windows_agree():
    slow_start = [10.0] * 5 + [5.0] * 5 + [2.0] * 5
    timings = time_steps(lambda: None, ScriptedWatch(*slow_start, 2.0), Settings(settle_s=60))
    assert timings.warm_up_steps == 20
    assert timings.settled is True
    assert set(timings.wall_ms) == {2.0}


def test_a_warm_up_that_does_not_settle_is_said_and_ends():
    restless = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0] * 100_000
    timings = time_steps(
        lambda: None, ScriptedWatch(*restless), Settings(warm_up_steps=1, settle_s=0.05)
    )
    assert timings.settled is False


def test_one_window_of_long_steps_says_nothing_about_settling():
    timings = time_steps(lambda: None, HostStopwatch(), Settings(settle_s=-1.0, timed_steps=1))
    assert timings.settled is None
    assert timings.warm_up_steps == 5


def test_looks_at_the_counters_fall_before_amid_and_after_the_timed_steps():
    order: list[str] = []
    time_steps(
        lambda: order.append("step"),
        HostStopwatch(),
        Settings(warm_up_steps=1, timed_steps=4, settle_s=-1.0),
        between=lambda: order.append("look"),
    )
    assert order == ["step", "look", "step", "step", "step", "look", "step", "look"]


def test_an_error_of_the_step_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        time_steps(lambda: 1 / 0, HostStopwatch(), Settings())
