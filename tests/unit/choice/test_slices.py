"""The smallest slice that will do, by the shipped checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dippm
from dippm import devices
from dippm.errors import ConditionsError


@pytest.fixture(scope="module")
def deep_file(tmp_path_factory):
    """Launches enough for the host to decide on a large slice, kernels enough on a small one."""
    import torch

    path = tmp_path_factory.mktemp("deep") / "deep.pt"
    layers = [torch.nn.Conv2d(3, 64, 3, padding=1)]
    for _ in range(60):
        layers += [torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1)]
    torch.save(torch.nn.Sequential(*layers).eval(), path)
    return path


def test_a_slice_in_time_vouches_for_what_holds_it(deep_file):
    asked = {"device": "A100-80GB", "input": "3,56,56", "batch": 8}
    free = dippm.smallest_slice(deep_file, **asked)
    highs = [c.prediction.intervals["latency_ms"].high for c in free.contenders]
    least = highs.index(min(highs))
    assert highs[-1] > 1.01 * highs[least], "the host must widen the interval of the whole GPU"
    choice = dippm.smallest_slice(deep_file, slo_ms=1.005 * highs[least], **asked)
    names = [c.name for c in choice.contenders]
    assert choice.best.name == names[least]
    feasible = [c.feasible for c in choice.contenders]
    assert feasible == [i >= least for i in range(len(names))]
    whole = choice.contenders[-1]
    assert f"A100-80GB {whole.vouched_by}" == names[least]
    assert choice.best.vouched_by is None


def test_it_is_the_first_that_holds_the_memory_and_meets_the_limit(wide):
    free = dippm.smallest_slice(wide, batch=32)
    sizes = [c.size for c in free.contenders]
    assert sizes == sorted(sizes)
    assert free.contenders[-1].name == "A100-40GB"
    assert free.best is next(c for c in free.contenders if c.feasible)
    latency = {c.name: c.prediction.intervals["latency_ms"].high for c in free.contenders}
    slo_ms = latency["A100-40GB 3g.20gb"] * 1.001
    met = dippm.smallest_slice(wide, batch=32, slo_ms=slo_ms)
    assert met.best.name == "A100-40GB 3g.20gb"
    for c in met.contenders[: met.contenders.index(met.best)]:
        assert met.reason(c)


def test_without_a_limit_it_is_what_predict_advises(wide):
    for batch in (1, 32, 128, 256):
        advised = dippm.predict(wide, batch=batch).mig
        found = dippm.smallest_slice(wide, batch=batch).best.mig
        assert found.memory_mb <= advised.memory_mb


def test_the_whole_gpu_is_the_last_resort(wide):
    whole = dippm.predict(wide, batch=32)
    slo_ms = whole.intervals["latency_ms"].high * 1.001
    choice = dippm.smallest_slice(wide, batch=32, slo_ms=slo_ms)
    assert choice.best.name in ("A100-40GB", "A100-40GB 7g.40gb")


def test_copies_and_what_they_strand(wide):
    choice = dippm.smallest_slice(wide)
    copies = {c.mig.name: (c.copies, c.stranded_compute_slices) for c in choice.contenders if c.mig}
    assert copies == {
        "1g.5gb": (7, 0), "1g.10gb": (4, 3), "2g.10gb": (3, 0), "3g.20gb": (2, 1),
        "4g.20gb": (1, 0), "7g.40gb": (1, 0),
    }  # fmt: skip


def test_a_gpu_without_slices(wide):
    with pytest.raises(ConditionsError, match="T4 cannot be sliced") as caught:
        dippm.smallest_slice(wide, device="T4")
    assert "dippm devices" in caught.value.hint


def test_a_gpu_of_ones_own(wide):
    mine = replace(devices.find("A100"), name="Mine", aliases=())
    choice = dippm.smallest_slice(wide, device=mine)
    assert choice.best.name == "Mine 1g.5gb"
