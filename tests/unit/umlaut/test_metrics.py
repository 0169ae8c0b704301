"""What each metric says, and that what it cannot say does not touch the workload."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dippm.measure.readings import Absent
from dippm.umlaut import (
    Benchmark,
    BenchmarkSupervisor,
    CPUMetric,
    EnergyMetric,
    GPUMemoryMetric,
    GPUMetric,
    GPUPowerMetric,
    GPUTimeMetric,
    LatencyMetric,
    Metric,
    PowerMetric,
    ThroughputMetric,
    TimeMetric,
)


def busy(seconds: float) -> float:
    """Use so much CPU time, however long that takes, and return it."""
    before = time.process_time()
    while time.process_time() - before < seconds:
        pass
    return time.process_time() - before


def test_cpu_time_is_that_of_the_call(benchmark: Benchmark) -> None:
    used = []

    @BenchmarkSupervisor([CPUMetric("cpu", interval=0.05)], benchmark)
    def work() -> None:
        used.append(busy(1.0))

    work()
    (row,) = benchmark.rows()
    assert row.unit == "%"
    assert row.value is not None
    assert row.seconds is not None
    assert row.value * row.seconds / 100 == pytest.approx(used[0], rel=0.25)


GROW = """
import time
from dippm.umlaut import Benchmark, BenchmarkSupervisor, MemoryMetric

benchmark = Benchmark("runs.db", description="grow")

def written():
    return sum(file.stat().st_size for file in benchmark.folder.glob("samples-*.dippm"))

@BenchmarkSupervisor([MemoryMetric("memory", interval=0.02)], benchmark)
def grow(size_mb):
    held = bytearray(size_mb << 20)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    for _ in range(2):  # the first batch of readings may have begun before
        before = written()
        while written() == before:
            time.sleep(0.02)

grow(1)
grow(128)
small, large = benchmark.rows()
times = [at for at, _ in large.series]
print(large.value - small.value, len(times), times == sorted(times))
benchmark.close()
"""


def test_memory_is_the_most_of_the_call(script: Callable[..., Any]) -> None:
    more_mb, readings, in_order = script(GROW).stdout.split()
    assert float(more_mb) == pytest.approx(127, abs=10)
    assert int(readings) > 2
    assert in_order == "True"


def test_latency_and_throughput_are_of_the_entries_of_each_call(benchmark: Benchmark) -> None:
    latency, throughput = LatencyMetric("l"), ThroughputMetric("t")

    @BenchmarkSupervisor([latency, throughput], benchmark)
    def infer(entries: int) -> None:
        time.sleep(0.02)
        latency.track(entries)
        throughput.track(entries)

    infer(10)
    infer(1)
    rows = {row.description: row for row in benchmark.rows()[:2]}
    assert rows["l"].value is not None
    assert rows["t"].value is not None
    assert rows["l"].value * rows["t"].value == pytest.approx(1, rel=0.05)
    one = next(row for row in benchmark.rows()[2:] if row.description == "l")
    assert one.value is not None
    assert one.value > 2 * rows["l"].value


def test_entries_may_be_tracked_before_the_calls(benchmark: Benchmark) -> None:
    throughput = ThroughputMetric()
    throughput.track(8)
    supervised = BenchmarkSupervisor([throughput], benchmark)(lambda: time.sleep(0.01))
    supervised()
    assert 0 < (benchmark.rows()[0].value or 0) <= 800


def test_nobody_tracked(benchmark: Benchmark) -> None:
    BenchmarkSupervisor([LatencyMetric()], benchmark)(lambda: None)()
    (row,) = benchmark.rows()
    assert row.value is None
    assert "track(n)" in row.absent


@pytest.mark.parametrize(
    "metric", [GPUMetric("x", 0.05), GPUMemoryMetric("x", 0.05), GPUPowerMetric("x", 0.05)]
)
def test_a_gpu_that_is_not_there_is_absent_with_its_reason(
    benchmark: Benchmark, metric: Metric
) -> None:
    pytest.importorskip("torch")
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    supervised = BenchmarkSupervisor([metric], benchmark)(lambda: 5)
    assert supervised() == 5
    deadline = time.monotonic() + 30
    while not list(benchmark.folder.glob("samples-*.dippm")):  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    benchmark.close()
    (row,) = benchmark.rows()
    assert row.value is None
    assert row.series == ()
    assert "NVIDIA" in row.absent or "nvidia" in row.absent


def test_energy_is_the_counters_difference_or_absent(benchmark: Benchmark) -> None:
    metrics = [EnergyMetric("energy"), PowerMetric("power", interval=0.05)]
    BenchmarkSupervisor(metrics, benchmark)(lambda: busy(0.05))()
    for row in benchmark.rows():
        assert (row.value is None) == bool(row.absent)
        assert row.value is None or row.value > 0


def test_time_on_a_gpu_needs_torch_and_a_gpu(benchmark: Benchmark) -> None:
    BenchmarkSupervisor([GPUTimeMetric()], benchmark)(lambda: None)()
    (row,) = benchmark.rows()
    assert row.unit == "s"
    assert row.value is not None or "torch" in row.absent


class Broken(Metric):
    measure_type = name = "broken"

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def begin(self) -> Any:
        if self.where == "begin":
            raise RuntimeError("no begin")

    def end(self, begun: Any, seconds: float) -> float | Absent:
        raise RuntimeError("no end")


@pytest.mark.parametrize("where", ["begin", "end"])
def test_a_metric_that_fails_does_not_touch_the_workload(benchmark: Benchmark, where: str) -> None:
    supervised = BenchmarkSupervisor([TimeMetric(), Broken(where)], benchmark)(lambda: 3)
    assert supervised() == 3
    rows = {row.measure_type: row for row in benchmark.rows()}
    assert rows["time"].value is not None
    assert f"no {where}" in rows["broken"].absent


def test_an_interval_makes_sense() -> None:
    with pytest.raises(ValueError, match="interval"):
        CPUMetric("cpu", interval=0)


@pytest.mark.parametrize(("metrics", "limit_us"), [([], 20), ([TimeMetric()], 100)])
def test_what_a_call_costs(benchmark: Benchmark, metrics: list[Metric], limit_us: float) -> None:
    """CPU time, of the best of many short bursts: what else runs here does not count."""
    supervised = BenchmarkSupervisor(metrics, benchmark)(lambda: None)
    costs_us = []
    for _ in range(200):
        before = time.thread_time_ns()
        for _ in range(20):
            supervised()
        costs_us.append((time.thread_time_ns() - before) / 20e3)
    assert min(costs_us) <= limit_us


def test_the_example_of_a_metric_of_ones_own(benchmark: Benchmark) -> None:
    import runpy
    from pathlib import Path

    example = Path(__file__).parents[3] / "examples" / "umlaut_metric.py"
    made = runpy.run_path(str(example))["ContextSwitchMetric"]("waiting")
    BenchmarkSupervisor([made], benchmark)(lambda: [time.sleep(0.001) for _ in range(5)])()
    (row,) = benchmark.rows()
    assert (row.measure_type, row.description, row.unit) == ("switches", "waiting", "switches")
    assert row.value is not None
    assert row.value >= 5
