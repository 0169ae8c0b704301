"""Copies of a model under MPS on each place of a choice, and on slices that hold models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.decide.choice import pack
from dippm.decide.sharing import predict_among_copies
from dippm.errors import ConstraintError
from tests.unit.sharing.test_share import net

A100 = "A100-80GB"


@pytest.fixture(scope="module")
def small() -> Any:
    return dippm.read_graph(net(), input=(3, 64, 64))


def test_a_prediction_beside_copies_is_that_of_the_set(small: Any) -> None:
    alone = dippm.predict(small, device=A100, batch=256)
    loaded = dippm.load(device=A100)
    assert predict_among_copies(loaded, small, alone, 1) is alone
    found = predict_among_copies(loaded, small, alone, 3)
    shared = dippm.share([small], device=A100, batch=256, copies=3)
    one = shared.processes[0]
    assert found.latency_ms == pytest.approx(one.latency_ms)
    assert found.intervals["latency_ms"] == one.latency
    assert found.energy_j == pytest.approx(one.energy_j)
    assert found.power_w == pytest.approx(shared.power_w)
    assert found.memory_bound_mb == pytest.approx(shared.memory_bound_mb)
    assert found.fits == shared.feasible
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_choice_holds_all_copies_and_ranks_by_what_they_do_together(small: Any) -> None:
    options: dict[str, Any] = {"devices": [A100, "T4"], "batch": 64, "by": "throughput"}
    one, four = (dippm.choose(small, copies=n, **options) for n in (1, 4))
    assert "4 copies under MPS" in four.conditions
    alone = {c.name: c for c in one.contenders}
    for c in four.contenders:
        before = alone[c.name]
        if c.prediction is None or before.prediction is None:
            continue
        assert c.memory_bound_mb == pytest.approx(4 * (before.memory_bound_mb or 0.0))
        rates = [x.estimate("samples_per_s") for x in (before, c)]
        assert rates[0] is not None
        assert rates[1] is not None
        assert rates[1].value <= 4 * rates[0].value * (1 + 1e-9)
        if before.largest_batch and c.largest_batch:
            assert c.largest_batch < before.largest_batch
    t4 = next(c for c in four.contenders if c.name == "T4")
    assert t4.prediction is not None
    assert any("A100-80GB alone" in warning for warning in t4.prediction.warnings)


def test_a_gpu_without_mps_is_out_of_the_choice_with_its_reason(small: Any) -> None:
    found = dippm.choose(small, copies=2, devices=[A100, "MI250"], slices=False)
    other = next(c for c in found.contenders if c.device.is_of_another_vendor)
    assert found.best is not None
    assert found.best.name == A100
    assert other.prediction is None
    assert "MPS runs on NVIDIA GPUs" in str(other.error)


def test_copies_share_the_price_of_an_hour(small: Any) -> None:
    options: dict[str, Any] = {"devices": A100, "slices": False, "prices": {A100: 4.0}}
    one, two = (dippm.choose(small, copies=n, **options).best for n in (1, 2))
    assert one is not None
    assert two is not None
    costs = [c.estimate("cost_per_million") for c in (one, two)]
    assert costs[0] is not None
    assert costs[1] is not None
    slower = (two.prediction.latency_ms or 0) / (one.prediction.latency_ms or 1)  # type: ignore[union-attr]
    assert costs[1].value == pytest.approx(costs[0].value * slower / 2)


def test_slices_hold_all_copies_of_their_model(small: Any) -> None:
    plain, shared = (pack([small, small], device="A100", batch=256, copies=n) for n in (1, 3))
    for before, after in zip(plain.models, shared.models, strict=True):
        assert before.contender is not None
        assert after.contender is not None
        assert after.contender.processes == 3
        assert (after.contender.memory_bound_mb or 0) > (before.contender.memory_bound_mb or 0)


def test_no_copies_are_refused(small: Any) -> None:
    with pytest.raises(ConstraintError, match="0 processes"):
        dippm.choose(small, devices="T4", copies=0)


def test_the_options_of_the_command_line(tmp_path: Any) -> None:
    import torch

    path = tmp_path / "net.pt"
    torch.save(net(), path)
    words = f"{path} --trust --input 3,64,64 --batch 64 --json"
    answer = CliRunner().invoke(app, f"choose {words} --devices A100 --copies 2".split())
    document = json.loads(answer.stdout)
    assert {row["processes"] for row in document["rows"]} == {2}
    answer = CliRunner().invoke(app, f"mig plan {words} --mps 2".split())
    document = json.loads(answer.stdout)
    assert "2 copies under MPS" in document["conditions"]
