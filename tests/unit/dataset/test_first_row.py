"""What the first row of a machine shows, and what its rows will lack."""

import pytest
import torch

from dataset.collect.first_row import first_row, missing_labels
from dippm.measure import context
from dippm.measure.protocol import Regime, Settings
from dippm.measure.readings import Absent, AbsentSource
from dippm.measure.run import Bench, Wanted
from tests import cuda_stand_in

QUICK = Settings(timed_steps=3, settle_s=0.01, energy_window_s=0.4)
NO_BINDING = "nvidia-ml-py is not installed: pip install nvidia-ml-py"


@pytest.fixture
def gpu():
    with cuda_stand_in.gpu() as made:
        yield made


def row(**wanted):
    module, inputs = torch.nn.Linear(8, 8), (torch.randn(4, 8),)
    bench = Bench(cuda_stand_in.DEVICE, QUICK)
    columns = bench.measure(module, inputs, Regime(), wanted=Wanted(**wanted))
    point = {"model": "own:dense", "batch": 4, "precision": "fp32", "phase": "inference"}
    return {**columns, **point, "status": "ok"}


def shown(**wanted):
    return list(first_row(row(**wanted)))


def test_what_was_told_or_not_asked_for_is_not_missed(gpu):
    assert missing_labels(row(energy=False)) == []


def test_without_the_binding_of_nvml_the_labels_that_rows_lack_are_named_in_one_line(
    gpu, monkeypatch
):
    def none(name, **_):
        return AbsentSource(name, context.nvml.QUANTITIES, NO_BINDING)

    monkeypatch.setattr(context, "open_source", none)
    assert missing_labels(row(energy=True)) == [
        f"rows lack memory_mb, energy_j, sm_clock_mhz: {NO_BINDING}"
    ]


def test_the_first_row_shows_its_values_and_where(gpu):
    first, memory = shown(energy=True)
    assert first.startswith("first row: own:dense batch 4 fp32 inference on Stand-in, torch ")
    assert all(word in first for word in (" ms, ", " ms of kernels", " J, ", " MiB, 1,980 MHz"))
    assert memory == (
        "memory of the board: 700 MiB used by NVML's first version, the second is not to be had; "
        "context 680 MiB; memory_mb is the peak of the allocator's blocks and the context of a "
        "fresh process, with what the driver keeps for itself"
    )


def test_it_shows_both_figures_of_nvml_and_which_of_them_rows_have(gpu, monkeypatch):
    monkeypatch.setattr("dippm.measure.run.driver_memory_mb", lambda device: 563.0)
    _, memory = shown(energy=False)
    assert "700 MiB used by NVML's first version, 137 by its second" in memory
    assert "context 117 MiB" in memory
    assert memory.endswith("fresh process, without what the driver keeps for itself")


def test_another_process_on_the_device_is_said_to_spoil_every_row(gpu):
    gpu.others = 1, 300.0
    _, _, verdict, advice = shown(energy=False)
    assert verdict == (
        "it is no label, and no row will be while that lasts: "
        "disturbed: other processes on the device"
    )
    assert "--pid=host" in advice


def test_what_nvml_does_not_tell_is_no_line(gpu, monkeypatch):
    monkeypatch.setattr(
        "dippm.measure.run.memory.without_driver", lambda used, driver: Absent("NVML is silent")
    )
    assert not any(line.startswith("memory of the board") for line in shown(energy=False))


def test_a_cpu_is_not_expected_to_have_them():
    assert missing_labels({"device_kind": "cpu", "absent": {"memory_mb": "?"}}) == []
