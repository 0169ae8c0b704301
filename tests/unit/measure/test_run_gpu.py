"""The protocol on a real GPU; elsewhere skipped. Nothing here looks at how long anything takes."""

import pytest
import torch

from dippm.estimate.conditions import PRECISIONS
from dippm.measure.protocol import Regime, Settings
from dippm.measure.run import Bench, Wanted

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here"),
]
TIME = Wanted(energy=False)
MEASURED = (
    "latency_ms event_ms kernel_ms queued_ms memory_mb memory_nvml_mb memory_allocated_mb "
    "memory_reserved_mb"
).split()


@pytest.fixture(scope="module")
def bench():
    made = Bench(torch.device("cuda:0"), Settings(energy_window_s=2.0, settle_s=0.5))
    yield made
    made.close()


def network() -> torch.nn.Module:
    layers = [torch.nn.Conv2d(3, 64, 7, 2), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(*layers).cuda().eval()


def images(batch: int = 16) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, 224, 224, device="cuda"),)


@pytest.mark.parametrize("phase", ["inference", "train"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_and_phase_gives_a_row(bench, precision, phase):
    row = bench.measure(network(), images(), Regime(precision, phase=phase), wanted=TIME)
    assert all(row[name] > 0 for name in MEASURED), row["absent"]
    assert row["memory_allocated_mb"] <= row["memory_reserved_mb"] <= row["memory_nvml_mb"]
    assert len(row["events_ms"]) == len(row["latencies_ms"]) == 30
    assert row["event_median_ms"] <= row["latency_median_ms"]


def test_energy_is_power_times_time_and_above_idle(bench):
    row = bench.measure(network(), images(256), Regime("fp16"))
    if row["energy_j"] is None:
        pytest.skip(row["absent"]["energy_j"])
    assert row["energy_window_s"] >= 2.0
    assert row["power_w"] > row["idle_power_w"] > 0
    assert 0 < row["energy_net_j"] < row["energy_j"]


def test_more_samples_need_more_tensors(bench):
    few, many = (
        bench.measure(network(), images(batch), Regime(), wanted=TIME) for batch in (4, 64)
    )
    assert many["memory_allocated_mb"] > few["memory_allocated_mb"]


def test_a_row_says_where_it_was_measured(bench):
    row = bench.measure(network(), images(), Regime(), wanted=TIME)
    assert row["device_kind"] == "cuda"
    assert row["device_uuid"].startswith(("GPU-", "MIG-"))
    assert row["driver"]
    assert row["cuda"]


def test_kernels_know_their_operator_and_module(bench):
    row = bench.measure(network(), images(), Regime(), wanted=TIME)
    assert row["kernel_launches"] == len(row["kernels"]) > 0
    products = [k for k in row["kernels"] if k["operators"][:1] == ["aten::conv2d"]]
    assert products
    assert {k["path"] for k in products} == {"0"}
    assert all(len(k["grid"]) == 3 for k in products)
    assert row["kernel_ms"] <= row["event_ms"]


def test_the_profiler_does_not_slow_what_is_timed_after_it(bench):
    """CUPTI stays loaded: the medians of the same point must be within the noise of a device."""
    before = bench.measure(network(), images(256), Regime(), wanted=Wanted(False, kernels=True))
    after = bench.measure(network(), images(256), Regime(), wanted=Wanted(False, kernels=False))
    assert after["event_median_ms"] == pytest.approx(before["event_median_ms"], rel=0.2)


def test_an_operator_is_not_faster_with_cold_caches(bench):
    inputs = (torch.randn(1024, 1024, device="cuda"),)
    row = bench.measure(torch.nn.ReLU(), inputs, Regime(), wanted=Wanted(False, cold=True))
    assert row["cold_kernel_ms"] >= row["kernel_ms"]
