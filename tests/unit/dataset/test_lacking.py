"""What a machine does not tell is said with its first row."""

import pytest
import torch

from dataset.collect.lacking import lacking
from dippm.measure import counters
from dippm.measure.protocol import Regime, Settings
from dippm.measure.readings import AbsentSource
from dippm.measure.run import Bench, Wanted
from tests import cuda_stand_in

QUICK = Settings(timed_steps=3, settle_s=0.01, energy_window_s=0.05)
NO_BINDING = "nvidia-ml-py is not installed: pip install nvidia-ml-py"


@pytest.fixture
def gpu():
    with cuda_stand_in.gpu() as made:
        yield made


def row(**wanted):
    module, inputs = torch.nn.Linear(8, 8), (torch.randn(4, 8),)
    bench = Bench(cuda_stand_in.DEVICE, QUICK)
    return bench.measure(module, inputs, Regime(), wanted=Wanted(**wanted))


def test_what_was_told_or_not_asked_for_is_not_missed(gpu):
    assert lacking(row(energy=False)) == []


def test_without_the_binding_of_nvml_the_labels_that_rows_lack_are_named_in_one_line(
    gpu, monkeypatch
):
    def none(name, **_):
        return AbsentSource(name, counters.nvml.QUANTITIES, NO_BINDING)

    monkeypatch.setattr(counters, "open_source", none)
    assert lacking(row(energy=True)) == [
        f"rows lack memory_mb, energy_j, sm_clock_mhz: {NO_BINDING}"
    ]


def test_a_cpu_is_not_expected_to_have_them():
    assert lacking({"device_kind": "cpu", "absent": {"memory_mb": "?"}}) == []
