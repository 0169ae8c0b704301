"""Processes that share a GPU: what holds of every answer, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import dippm
from dippm.decide.sharing.load import load_of, smallest_part
from dippm.decide.sharing.ways import part_of
from dippm.devices import find
from dippm.errors import ConditionsError, ConstraintError, UnknownNameError
from dippm.estimate.model_list import Candidate
from dippm.estimate.models.neighbour_law import fitted

A100 = "A100-80GB"
SIZES = (3, 64, 64)
WAYS = ("mps", "time-slicing")


def net(width: int = 64) -> nn.Module:
    """Return a small convolutional network whose batch of 256 keeps a GPU busy."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(4):
        layers += [nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    ).eval()


@pytest.fixture(scope="module")
def small() -> Any:
    return dippm.read_graph(net(), input=SIZES)


@pytest.fixture(scope="module")
def large() -> Any:
    return dippm.read_graph(net(128), input=SIZES)


def shared(models: list[Any], **options: Any) -> dippm.SharedGpu:
    return dippm.share(models, **{"device": A100, "batch": 256, **options})


@pytest.mark.parametrize("way", WAYS)
def test_one_process_is_the_prediction(small: Any, way: str) -> None:
    alone = dippm.predict(small, device=A100, batch=256)
    found = shared([small], sharing=way)
    (one,) = found.processes
    assert alone.latency_ms == pytest.approx(one.latency_ms)
    assert one.slowdown == pytest.approx(1.0)
    assert one.latency.low == pytest.approx(alone.intervals["latency_ms"].low)
    assert one.latency.high == pytest.approx(alone.intervals["latency_ms"].high)
    assert alone.energy_j == pytest.approx(one.energy_j)
    assert alone.power_w == pytest.approx(found.power_w)
    assert alone.memory_bound_mb == found.memory_bound_mb
    assert found.measured


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", [1, 256])
def test_copies_keep_to_both_bounds_of_throughput(small: Any, way: Any, batch: int) -> None:
    alone = dippm.predict(small, device=A100, batch=batch)
    assert alone.latency_ms is not None
    loaded = dippm.load(device=A100)
    load = load_of(loaded, small, alone.conditions, alone)
    full = 1e3 * batch / fitted().demand_ms(load, way)
    earlier = 0.0
    for copies in range(1, 6):
        found = shared([small], sharing=way, batch=batch, copies=copies)
        slow = found.processes[0].slowdown
        assert len(found.processes) == copies
        assert slow >= earlier
        earlier = slow * (1 - 1e-9)
        most = min(copies * 1e3 * batch / alone.latency_ms, full)
        assert found.samples_per_s <= most * (1 + 1e-9)
        for process in found.processes:
            assert process.latency.low <= process.latency_ms <= process.latency.high


def test_small_batches_share_for_nothing_and_large_ones_do_not(small: Any) -> None:
    """Four processes that wait for their hosts fill a GPU; four that fill it by themselves wait."""
    waiting = shared([small], batch=1, copies=4).processes[0]
    busy = shared([small], batch=1024, copies=4).processes[0]
    assert waiting.slowdown < 1.1
    assert busy.slowdown > 3.0


@pytest.mark.parametrize("batch", [64, 1024])
def test_more_copies_are_never_surer(small: Any, batch: int) -> None:
    """Also where no time of the GPU is left: what copies take from each other was measured."""
    widths = [
        one.latency.high / one.latency_ms
        for copies in range(1, 6)
        for one in shared([small], batch=batch, copies=copies).processes[:1]
    ]
    assert min(widths[1:]) > widths[0]
    assert min(widths[1:]) == pytest.approx(max(widths[1:]))


def test_memory_is_the_sum_and_a_set_over_it_is_infeasible(small: Any) -> None:
    one = shared([small], copies=1)
    assert one.memory_bound_mb is not None
    most = int(one.capacity_mb // one.memory_bound_mb)
    assert 2 < most < 48
    fits, over = (shared([small], copies=n) for n in (most, most + 1))
    assert fits.feasible
    assert not over.feasible
    assert over.memory_bound_mb == pytest.approx((most + 1) * one.memory_bound_mb)
    assert "99 %" in over.misfits[0]
    assert "81,920" in over.misfits[0]


def test_mixed_sets_say_that_none_was_measured(small: Any, large: Any) -> None:
    found = shared([small, large])
    assert not found.measured
    assert "different models" in found.why_bounds
    assert any("bounds" in warning for warning in found.warnings)
    for process in found.processes:
        alone_ms = process.alone.latency_ms
        assert alone_ms is not None
        assert process.latency.coverage == 0.0
        assert process.slowdown_range.low == pytest.approx(1.0)
        assert 1.0 <= process.slowdown <= process.slowdown_range.high


def test_a_batch_for_each_and_a_candidate_with_its_own(small: Any) -> None:
    found = shared([small, Candidate(small, batches=(4,))], batch=[8, 16])
    assert [process.batch for process in found.processes] == [8, 4]
    assert "different models" in found.why_bounds, "other batches are another set"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sharing": "time-slicing"}, "time slices"),
        ({"percentages": [50, 50]}, "percentages"),
        ({"device": "H100"}, "A100-80GB alone"),
        ({"copies": 6}, "no more than 5"),
        ({"precision": "fp16"}, "fp32 and tf32"),
        ({"phase": "train"}, "eager inference"),
    ],
)
def test_what_was_not_measured_is_a_bound_with_its_reason(
    small: Any, options: dict[str, Any], why: str
) -> None:
    models = [small] if "copies" in options else [small, small]
    found = shared(models, **options)
    assert not found.measured
    assert why in found.why_bounds


def test_percentages_limit_each_and_leave_the_rest_to_nobody(small: Any) -> None:
    found = shared([small, small], percentages=[60, 20])
    more, less = found.processes
    assert more.slowdown < less.slowdown
    assert (more.share, less.share) == (0.6, 0.2)
    assert found.idle_w is not None
    assert found.unattributed_idle_w == pytest.approx(0.2 * found.idle_w)
    assert less.part == "20 % threads"


def test_slices_are_predicted_by_themselves(small: Any) -> None:
    found = shared([small, small], sharing="mig", slices=["3g.40gb", "4g.40gb"])
    for process, name in zip(found.processes, ("3g.40gb", "4g.40gb"), strict=True):
        own = dippm.predict(small, device=A100, batch=256, mig=name)
        assert process.latency_ms == own.latency_ms
        assert process.part == name
        assert process.slowdown >= 1.0
    assert any("by itself" in warning for warning in found.warnings)
    tight = shared([small] * 2, sharing="mig", slices=["1g.10gb", "4g.40gb"], batch=4096)
    assert not tight.feasible
    assert "1g.10gb has 9,728" in tight.misfits[0]


def test_mode_may_say_how_a_gpu_is_shared(small: Any) -> None:
    assert shared([small], mode="time-slicing").sharing == "time-slicing"
    assert shared([small], mode="compiled").sharing == "mps"


def test_a_prediction_stands_for_its_model_under_its_conditions(small: Any) -> None:
    alone = dippm.predict(small, device=A100, batch=256, precision="tf32", mig="3g.40gb")
    found = dippm.share([alone], copies=2)
    again = dippm.share([small], copies=2, device=A100, batch=256, precision="tf32", mig="3g.40gb")
    assert found.processes[0].latency_ms == again.processes[0].latency_ms
    assert found.mig == again.mig
    assert dippm.share([alone], batch=8).processes[0].batch == 8


def test_several_share_a_slice(small: Any) -> None:
    found = shared([small], copies=2, mig="3g.40gb")
    assert (found.capacity_mb, found.mig and found.mig.name) == (40192, "3g.40gb")
    assert found.measured
    assert sum(process.share for process in found.processes) == pytest.approx(0.5)


def test_energies_sum_to_what_the_board_draws(small: Any) -> None:
    found = shared([small], copies=3)
    assert found.power_w is not None
    drawn_w = sum(1e3 * p.energy_j / p.latency_ms for p in found.processes if p.energy_j)
    assert drawn_w + (found.unattributed_idle_w or 0.0) == pytest.approx(found.power_w)


def test_a_gpu_without_a_known_power_has_no_energies(small: Any) -> None:
    found = shared([small], copies=2, device="A100-80GB", timer="kernel")
    assert found.processes[0].energy_j is not None
    from dataclasses import replace

    mine = replace(find("RTX-4090"), name="mine", power_limit_w=None)
    absent = shared([small], copies=2, device=mine)
    assert absent.processes[0].energy_j is None
    assert "power limit" in absent.absent["energy_j"]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"percentages": [60, 60]}, ConstraintError, "more than 100 %"),
        ({"percentages": [0, 50]}, ConstraintError, "is not possible"),
        ({"percentages": [150, 1]}, ConstraintError, "is not possible"),
        ({"percentages": [float("nan"), 1]}, ConstraintError, "is not possible"),
        ({"percentages": [50]}, ConstraintError, "1 percentages .* 2 processes"),
        ({"percentages": [50, 50], "sharing": "time-slicing"}, ConstraintError, "apply to MPS"),
        ({"sharing": "mpi"}, UnknownNameError, "way to share"),
        ({"sharing": "mig"}, ConstraintError, "0 slices"),
        ({"sharing": "mig", "slices": ["9g.90gb", "1g.10gb"]}, UnknownNameError, "9g.90gb"),
        ({"sharing": "mig", "slices": ["4g.40gb", "4g.40gb"]}, ConstraintError, "fit together"),
        (
            {"sharing": "mig", "slices": ["1g", "1g"], "device": "T4"},
            ConditionsError,
            "no known MIG",
        ),
        ({"slices": ["1g.10gb", "1g.10gb"]}, ConstraintError, "apply to MIG"),
        ({"mig": "9g.90gb"}, UnknownNameError, "9g.90gb"),
        ({"batch": [1, 2, 3]}, ConditionsError, "3 batches"),
        ({"copies": 0}, ConstraintError, "copies is 0"),
        ({"copies": 2.5}, ConstraintError, "copies is 2.5"),
        ({"percentages": 50}, ConstraintError, "percentages is 50"),
        ({"percentages": "50,50"}, ConstraintError, "percentages is .50,50"),
        ({"percentages": ["50", "50"]}, ConstraintError, "number above 0|not possible"),
        ({"percentages": [50, 50], "device": "P100"}, ConditionsError, "came with Volta"),
        ({"copies": 9, "device": "P100"}, ConditionsError, "at most 16 clients, not 18"),
        ({"device": "MI250"}, ConditionsError, "MPS runs on NVIDIA"),
        ({"memory_limits_mb": [4096]}, ConstraintError, "1 memory limits .* 2 processes"),
        ({"memory_limits_mb": [0, None]}, ConstraintError, "memory limit of 0"),
        (
            {"memory_limits_mb": [1, 1], "sharing": "time-slicing"},
            ConstraintError,
            "apply to MPS",
        ),
        ({"copies": 25}, ConstraintError, "50 processes"),
        (
            {"checkpoint": "pmgns-timm-rtx3090", "device": "RTX-3090", "precision": "amp"},
            ConditionsError,
            "not its kernels",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_next_step(
    small: Any, options: dict[str, Any], error: type[dippm.DippmError], says: str
) -> None:
    with pytest.raises(error, match=says) as raised:
        shared([small, small], **options)
    assert raised.value.hint


def test_no_model_is_refused() -> None:
    with pytest.raises(ConstraintError, match="0 processes"):
        dippm.share([])


@pytest.mark.parametrize("one", ["timm:resnet18", Path("net.onnx"), net(), None, 3])
def test_one_model_is_no_list(one: Any) -> None:
    """A name has letters and a sequence has layers: neither is taken for models."""
    for verb in (dippm.share, dippm.compare):
        with pytest.raises(ConditionsError, match="is not a list of models") as raised:
            verb(one)
        assert "[model]" in raised.value.hint


def test_predictions_keep_their_own_runtime_and_precision(small: Any) -> None:
    eager = dippm.predict(small, device=A100, batch=256)
    engine = dippm.predict(small, device=A100, batch=64, precision="fp16", runtime="tensorrt")
    found = dippm.share([eager, engine])
    assert [one.alone.conditions.runtime for one in found.processes] == ["pytorch", "tensorrt"]
    assert [one.alone.latency_ms for one in found.processes] == [
        eager.latency_ms,
        engine.latency_ms,
    ]
    assert found.conditions == "fp32 · eager, fp16 · tensorrt"
    assert not found.measured
    same = dippm.share([eager, engine], runtime="tensorrt", precision="fp16")
    assert {one.alone.conditions.runtime for one in same.processes} == {"tensorrt"}


def test_predictions_for_two_gpus_are_refused(small: Any) -> None:
    here, there = (dippm.predict(small, device=name) for name in (A100, "T4"))
    with pytest.raises(ConditionsError, match="device A100-80GB and T4") as raised:
        dippm.share([here, there])
    assert "device=" in raised.value.hint
    assert dippm.share([here, there], device="L4").device.name == "L4"


def test_the_bound_of_an_engine_counts_the_kernels_of_its_graph(small: Any) -> None:
    """A CUDA graph is one launch for the host; each of its kernels may wait for a neighbour's."""
    engine = dippm.predict(small, device=A100, precision="fp16", runtime="tensorrt")
    loaded = dippm.load(device=A100)
    load = load_of(loaded, small, engine.conditions, engine)
    assert engine.host is not None
    assert engine.host.launches == 1
    assert load.launches == sum(row.kernels for row in engine.operators) > 1
    eager = dippm.predict(small, device=A100)
    assert eager.host is not None
    assert load_of(loaded, small, eager.conditions, eager).launches == eager.host.launches


def test_a_client_over_its_memory_limit_does_not_fit(small: Any) -> None:
    found = shared([small, small], memory_limits_mb=[1024, None])
    assert not found.feasible
    (why,) = found.misfits
    assert "its limit is 1,024 MB" in why
    assert shared([small, small], memory_limits_mb=[65536, None]).feasible


def test_a_model_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(dippm.DippmError):
        dippm.share([tmp_path / "none.onnx"])


def test_every_gpu_has_a_part_that_a_process_fills() -> None:
    assert smallest_part(find("A100"), None).name == "1g.5gb"
    part = smallest_part(find("RTX-4090"), None)
    assert part.sm_count == pytest.approx(find("RTX-4090").known("sm_count") / 7, rel=0.1)
    assert part_of(find("A100"), None, 50).sm_count == 54
    assert part_of(find("A100"), None, 0.01).sm_count == 1


def test_it_prints_and_becomes_json(small: Any) -> None:
    found = shared([small], copies=2)
    text = str(found)
    assert "together" in text
    assert "slow-down" in text
    assert "<table" in found._repr_html_()
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert len(document["processes"]) == 2
    assert document["feasible"] is True


def test_throughput_is_drawn_over_the_number_of_processes() -> None:
    pytest.importorskip("plotly")
    from dippm.show.report.sharing import Rate, throughput_figure

    lines = {"batch 1": [Rate(1, 100.0, 90.0), Rate(2, 190.0)], "batch 8": [Rate(1, 300.0)]}
    figure = throughput_figure(lines)
    assert [line.name for line in figure.data] == [
        *("batch 1, predicted", "batch 1, measured", "batch 8, predicted"),
    ]
