import pytest
import torch

from dippm.measure import timing
from dippm.measure.protocol import Settings
from dippm.measure.readings import Absent
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
    assert len(calls) == 1 + timings.warm_up.steps + 30
    assert timings.warm_up.steps >= 5


def test_the_first_call_is_neither_warm_up_nor_timed_and_takes_none_of_their_time():
    compiling = ScriptedWatch(60_000.0, *[3.0] * 40, 1.0)
    timings = time_steps(lambda: None, compiling, Settings(settle_s=60))
    assert timings.warm_up.first_call_ms == 60_000.0
    assert timings.warm_up.settled is True
    assert timings.warm_up.steps == 18  # two windows of nine steps, 27 ms each
    assert 60_000.0 not in timings.wall_ms


def test_short_steps_warm_up_for_fifty_milliseconds():
    timings = time_steps(lambda: None, ScriptedWatch(0.5), Settings(settle_s=60))
    assert timings.warm_up.steps * 0.5 >= 50.0
    assert timings.warm_up.settled is True


def test_the_warm_up_goes_on_until_two_windows_agree():
    slow_start = [10.0] * 6 + [7.5] * 5 + [5.0] * 5
    timings = time_steps(lambda: None, ScriptedWatch(*slow_start, 5.0), Settings(settle_s=60))
    assert timings.warm_up.steps == 20
    assert timings.warm_up.settled is True
    assert set(timings.wall_ms) == {5.0}


def test_one_late_step_does_not_keep_a_steady_device_from_settling():
    late = [10.0] * 4 + [30.0]
    timings = time_steps(lambda: None, ScriptedWatch(*late, 10.0), Settings(settle_s=60))
    assert timings.warm_up.steps == 10


def test_a_warm_up_that_does_not_settle_is_said_and_ends():
    restless = [100.0 * (1 + number % 7) for number in range(1_000_000)]
    timings = time_steps(
        lambda: None, ScriptedWatch(*restless), Settings(warm_up_steps=1, settle_s=0.05)
    )
    assert timings.warm_up.settled is False


def test_a_single_window_says_how_long_it_took_and_how_long_it_might_have():
    timings = time_steps(lambda: None, ScriptedWatch(30.0), Settings(settle_s=-1.0, timed_steps=1))
    assert timings.warm_up.steps == 5
    assert isinstance(timings.warm_up.settled, Absent)
    assert "one window of 5 warm-up steps" in timings.warm_up.settled.reason
    assert "more than the -1 s" in timings.warm_up.settled.reason


def test_looks_at_the_counters_fall_before_amid_and_after_the_timed_steps():
    order: list[str] = []
    time_steps(
        lambda: order.append("step"),
        ScriptedWatch(30.0),
        Settings(warm_up_steps=1, timed_steps=4, settle_s=-1.0),
        between=lambda: order.append("look"),
    )
    first_and_warm_up = ["step", "step"]
    timed = ["look", "step", "step", "step", "look", "step", "look"]
    assert order == first_and_warm_up + timed


def test_an_error_of_the_step_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        time_steps(lambda: 1 / 0, HostStopwatch(), Settings())


CPU = torch.device("cpu")


def caches(folder, *sizes):
    for number, size in enumerate(sizes):
        (folder / f"index{number}").mkdir()
        (folder / f"index{number}" / "size").write_text(size + "\n")
    return folder


def test_the_last_level_cache_is_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "CACHES", caches(tmp_path, "32K", "1024K", "3M"))
    assert timing.cache_bytes(CPU) == 3 * 2**20


def test_a_cache_of_unknown_size_gives_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "CACHES", caches(tmp_path, "many"))
    size = timing.cache_bytes(CPU)
    assert isinstance(size, Absent)
    assert timing.displacer(CPU) == size


def test_several_times_the_cache_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "CACHES", caches(tmp_path, "64K"))
    displace = timing.displacer(CPU)
    assert (
        displace().item() * 4 == timing.BUFFER_CACHES * 64 * 2**10
    )  # a buffer of ones, each read once


def test_the_caches_are_emptied_before_each_step_and_outside_of_its_time():
    log: list[str] = []

    class Watch(HostStopwatch):
        def __call__(self, step):
            log.append("begin")
            step()
            log.append("end")
            return 2.0, 1.0

    columns = timing.cold_columns(
        lambda: log.append("step"), Watch(), lambda: log.append("displace"), 2
    )
    assert log == ["displace", "begin", "step", "end"] * 2
    assert columns == {"cold_latency_ms": 2.0, "cold_event_ms": 1.0}
