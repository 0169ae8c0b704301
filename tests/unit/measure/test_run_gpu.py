"""The protocol on a real GPU; elsewhere skipped. Nothing here looks at how long anything takes."""

import pytest
import torch

from dippm.conditions import PRECISIONS
from dippm.measure.protocol import Regime, Settings
from dippm.measure.run import Bench

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here"),
]
MEASURED = (
    "latency_ms event_ms queued_ms memory_mb memory_nvml_mb memory_allocated_mb memory_reserved_mb"
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
    row = bench.measure(network(), images(), Regime(precision, phase=phase), with_energy=False)
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
        bench.measure(network(), images(batch), Regime(), with_energy=False) for batch in (4, 64)
    )
    assert many["memory_allocated_mb"] > few["memory_allocated_mb"]


def test_a_row_says_where_it_was_measured(bench):
    row = bench.measure(network(), images(), Regime(), with_energy=False)
    assert row["device_kind"] == "cuda"
    assert row["device_uuid"].startswith(("GPU-", "MIG-"))
    assert row["driver"]
    assert row["cuda"]
