"""The protocol of a point on a stand-in for a GPU: what is asked, and what becomes of it."""

import pytest
import torch

from dippm.measure import context
from dippm.measure.columns import MEASURED
from dippm.measure.kernels import TracedKernel
from dippm.measure.protocol import Regime, Settings
from dippm.measure.readings import Absent
from dippm.measure.run import Bench, Wanted
from dippm.measure.timing import times_of
from tests import cuda_stand_in

QUICK = Settings(warm_up_steps=1, timed_steps=4, settle_s=0.0, energy_window_s=0.4, idle_s=0.05)


@pytest.fixture
def gpu():
    with cuda_stand_in.gpu() as made:
        yield made


def measured(bench: Bench, *, energy: bool = False, cold: bool = False) -> dict:
    module, inputs = torch.nn.Linear(8, 8), (torch.randn(4, 8),)
    before = bench.memory_mb()
    wanted = Wanted(energy=energy, cold=cold)
    return bench.measure(module, inputs, Regime(), wanted=wanted, memory_before_mb=before)


def test_every_column_of_a_gpu_has_a_value_or_a_reason(gpu):
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK), energy=True)
    for name in MEASURED:
        assert name in row, name
        assert (row[name] is None) == (name in row["absent"]), name


def test_a_fresh_process_measures_its_context(gpu, monkeypatch):
    """What `dippm doctor` shows: in use, less what others and torch's allocator have of it."""
    assert context.measured_here() == {"absent": "torch sees no GPU"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu.others = 1, 180.0
    found = context.measured_here()
    assert found.pop("torch") == torch.__version__
    assert found == {"context_mb": 700 - 180 - 20, "device": "Stand-in", "cuda": torch.version.cuda}
    gpu.others = 1, None
    assert context.measured_here() == {"absent": context.CROWDED}


def test_each_quantity_is_asked_for_when_it_is_needed_and_no_more(gpu):
    bench = Bench(cuda_stand_in.DEVICE, QUICK)
    gpu.asked.clear()
    measured(bench)
    moments = 3  # before, amid and after the timed steps
    assert dict(gpu.asked) == {
        "sm_clock_mhz": moments,
        "memory_clock_mhz": moments,
        "temperature_c": moments,
        "throttle": moments,
        "memory_used_mb": 2,  # before the model and after its steps
        "power_cap_w": 1,
    }


def test_an_energy_window_asks_the_counter_alone_for_energy(gpu):
    bench = Bench(cuda_stand_in.DEVICE, QUICK)
    gpu.asked.clear()
    measured(bench, energy=True)
    assert gpu.asked["energy_j"] > gpu.asked["sm_clock_mhz"]
    assert gpu.asked["power_w"] == gpu.asked["power_instant_w"] == 0


def test_clocks_heat_and_throttling_are_kept_by_phase(gpu):
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK), energy=True)
    assert (row["sm_clock_mhz"], row["energy_sm_clock_mhz"]) == (1980, 1500)
    assert (row["temperature_c"], row["energy_temperature_c"]) == (40, 70)
    assert (row["throttle_reasons"], row["energy_throttle_reasons"]) == ([], ["sw_power_cap"])
    assert row["energy_memory_clock_mhz"] == 2619
    assert row["utilization_percent"] == 99


def test_idle_power_is_read_before_and_after_every_window(gpu, monkeypatch):
    bench = Bench(cuda_stand_in.DEVICE, QUICK)
    said = iter([60.0, 80.0, 70.0, 90.0])
    monkeypatch.setattr(bench.counters, "idle_power_w", lambda seconds: next(said))
    first, second = (measured(bench, energy=True) for _ in range(2))
    assert (first["idle_power_w"], first["idle_power_after_w"]) == (60, 80)
    assert (second["idle_power_w"], second["idle_power_after_w"]) == (70, 90)
    step_s = first["energy_j"] / first["power_w"]
    assert first["energy_net_j"] == pytest.approx(first["energy_j"] - 70 * step_s)


def test_kernels_that_earlier_models_loaded_are_not_this_ones_memory(gpu):
    bench = Bench(cuda_stand_in.DEVICE, QUICK)
    first = measured(bench)
    gpu.used_mb += 400  # loaded lazily, and never given back
    second = measured(bench)
    assert first["memory_context_mb"] == second["memory_context_mb"] == 700 - 20
    assert first["memory_mb"] == second["memory_mb"] == 680 + gpu.reserved_mb
    assert second["memory_nvml_mb"] - first["memory_nvml_mb"] == 400


def test_the_context_is_without_the_memory_of_others(gpu):
    gpu.others = (1, 300.0)
    assert Bench(cuda_stand_in.DEVICE, QUICK).context_mb == 700 - 300 - 20
    gpu.others = (1, None)
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK))
    assert row["memory_mb"] is None
    assert "other processes" in row["absent"]["memory_mb"]
    assert row["memory_reserved_mb"] == gpu.reserved_mb


def test_memory_is_without_what_the_driver_keeps_where_it_says_so(gpu, monkeypatch):
    """As `nvidia-smi` shows it, and as the predictor's contexts are."""
    monkeypatch.setattr("dippm.measure.run.driver_memory_mb", lambda device: 563.0)
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK))
    assert row["memory_driver_mb"] == 563
    assert row["memory_context_mb"] == 700 - 563 - 20
    assert row["memory_mb"] == row["memory_context_mb"] + gpu.reserved_mb
    assert (row["memory_before_mb"], row["memory_nvml_mb"]) == (700 - 563, 700 - 563)
    assert row["memory_method"].endswith(", without what the driver keeps for itself")


def test_without_the_second_figure_the_label_says_what_is_in_it(gpu, monkeypatch):
    said = Absent("the driver is older than this counter: update it")
    monkeypatch.setattr("dippm.measure.run.driver_memory_mb", lambda device: said)
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK))
    assert row["memory_context_mb"] == 700 - 20
    assert row["absent"]["memory_driver_mb"] == said.reason
    assert row["memory_method"].endswith(", with what the driver keeps for itself")


def test_the_workspaces_of_earlier_products_are_not_in_a_peak(gpu, monkeypatch):
    """They are given back before the cache is emptied and the peaks start anew."""
    log: list[str] = []
    drop = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch._C, drop, lambda: log.append("workspaces"), raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("cache"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *_: log.append("peaks"))
    bench = Bench(cuda_stand_in.DEVICE, QUICK)
    measured(bench)
    order = ["workspaces", "cache", "peaks"]
    assert log == 2 * order  # before the model is built, and before its first step


def out_of_memory(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 240.00 MiB")


def test_a_buffer_that_does_not_fit_leaves_the_timed_row(gpu, monkeypatch):
    monkeypatch.setattr("dippm.measure.run.displacer", out_of_memory)
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK), cold=True)
    assert row["latency_ms"] > 0
    assert row["kernel_ms"] is not None
    for name in ("cold_latency_ms", "cold_event_ms", "cold_kernel_ms"):
        assert row[name] is None
        assert "no memory was left for the buffer" in row["absent"][name]


def test_a_step_beside_the_buffer_that_runs_out_of_memory_leaves_the_row_too(gpu, monkeypatch):
    monkeypatch.setattr("dippm.measure.run.cold_columns", out_of_memory)
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK), cold=True)
    assert "no memory was left" in row["absent"]["cold_latency_ms"]


def test_any_other_failure_of_the_buffer_is_the_points(gpu, monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("dippm.measure.run.displacer", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        measured(Bench(cuda_stand_in.DEVICE, QUICK), cold=True)


def test_a_row_has_a_time_in_every_regime(gpu):
    gpu.kernels_ns = [3000, 2000]
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK))
    assert (row["kernel_ms"], row["kernel_launches"]) == (0.005, 2)
    assert [TracedKernel.of(r).ns for r in row["kernels"]] == [3000, 2000]
    times = {(t.timer, t.cold): t.latency_ms for t in times_of(row)}
    assert times == {
        ("W", False): row["latency_ms"],
        ("E", False): row["event_ms"],
        ("K", False): 0.005,
    }


def test_the_profiled_step_comes_after_everything_that_is_timed(gpu):
    bench = Bench(cuda_stand_in.DEVICE, QUICK)
    gpu.asked.clear()
    measured(bench, energy=True)
    assert gpu.asked_before_profile == gpu.asked


def test_a_profiler_that_fails_leaves_the_row(gpu):
    gpu.kernels_ns = None
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK))
    assert row["latency_ms"] > 0
    assert row["kernel_ms"] is None
    assert "CUPTI" in row["absent"]["kernel_ms"]
    assert row["kernels"] == []


def test_operators_are_timed_with_cold_caches_too(gpu):
    """The displacing read is outside of the timed span and of the profiled step."""
    row = measured(Bench(cuda_stand_in.DEVICE, QUICK), cold=True)
    assert row["cold_latency_ms"] > 0
    assert row["cold_event_ms"] > 0
    assert row["cold_kernel_ms"] == row["kernel_ms"]  # the stand-in has no cache
    assert [t.timer for t in times_of(row) if t.cold] == ["W", "E", "K"]
    model = measured(Bench(cuda_stand_in.DEVICE, QUICK))
    assert "operators alone" in model["absent"]["cold_latency_ms"]
