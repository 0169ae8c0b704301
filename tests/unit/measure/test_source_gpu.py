"""The same sources on a real GPU, where there is one."""

import time

import pytest
import torch

from dippm.measure.sources.registry import open_source

pytestmark = pytest.mark.gpu


@pytest.fixture
def busy():
    """A step of work on the GPU."""
    a = torch.ones(4096, 4096, device="cuda")

    def work(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(20):
                torch.mm(a, a)
            torch.cuda.synchronize()

    return work


def test_nvml_reads_the_device_that_torch_uses(busy):
    source = open_source("nvml", device="cuda:0")
    before = source.read()
    busy(1.5)
    after = source.read()
    total_mb = torch.cuda.get_device_properties(0).total_memory / 2**20
    assert after.values["memory_total_mb"] == pytest.approx(total_mb, rel=0.05)
    assert after.values["memory_used_mb"] > 64
    for name in ("power_w", "energy_j", "temperature_c", "sm_clock_mhz", "power_cap_w"):
        if name not in after.absent:
            assert after.values[name] > 0
    if "energy_j" in after.values:
        seconds = (after.time_ns - before.time_ns) / 1e9
        mean_w = (after.values["energy_j"] - before.values["energy_j"]) / seconds
        assert 5 < mean_w < 2500
    source.close()


def test_our_process_is_ours(busy):
    busy(0.1)
    readings = open_source("nvml_processes", device="cuda:0").read()
    if "tree_memory_mb" in readings.absent:
        pytest.skip(readings.absent["tree_memory_mb"])
    assert readings.values["tree_memory_mb"] >= 64


def test_gpm_sees_work(busy):
    source = open_source("gpm", device="cuda:0")
    first = source.read()
    if "Hopper" in first.absent["sm_active_percent"]:
        pytest.skip(first.absent["sm_active_percent"])
    busy(1.0)
    readings = source.read()
    assert 20 < readings.values["sm_active_percent"] <= 100
    source.close()


def test_the_allocator_counts_tensors():
    source = open_source("cuda_allocator", device="cuda:0")
    source.reset_peak()
    before = source.read().values["allocated_mb"]
    held = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    assert source.read().values["allocated_mb"] == pytest.approx(before + 64)
    del held
    after = source.read()
    assert after.values["allocated_mb"] == pytest.approx(before)
    assert after.values["peak_allocated_mb"] == pytest.approx(before + 64)
    assert after.values["peak_reserved_mb"] >= after.values["peak_allocated_mb"]
