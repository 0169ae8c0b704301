"""Power limits of boards that were never measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.devices import Device, find
from dippm.estimate import pretrained
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.targets import Estimates
from tests.unit.prediction.test_physics import dense

BATCH = 16384


def predicted(device: Device, precision: str = "fp16", batch: int = BATCH) -> Estimates:
    conditions = Conditions(device=device, batch=batch, precision=precision)  # type: ignore[arg-type]
    return pretrained.load().predictor.predict(dense(), conditions)


def slowed(found: Estimates) -> bool:
    return any("power limit of" in warning for warning in found.warnings)


def with_limit(limit_w: float) -> Device:
    return replace(find("T4"), name="My T4", power_limit_w=limit_w)


def test_a_low_limit_slows_down_and_is_named() -> None:
    t4, free = predicted(find("T4")), predicted(with_limit(300))
    assert slowed(t4)
    assert not slowed(free)
    assert t4.values["latency_ms"].value > 1.1 * free.values["latency_ms"].value


def test_a_higher_limit_is_never_slower_and_draws_no_less() -> None:
    found = [predicted(with_limit(limit)) for limit in (40, 55, 70, 90, 120, 160, 300)]
    times = [one.values["latency_ms"].value for one in found]
    assert times == sorted(times, reverse=True)
    for limit, one in zip((40, 55, 70), found, strict=False):
        power = one.values["power_w"].value
        assert 0.8 * limit < power <= limit


def test_it_takes_the_same_work_less_energy_than_without_a_limit() -> None:
    low, free = predicted(with_limit(70)), predicted(with_limit(300))
    assert low.values["energy_j"].value < 1.05 * free.values["energy_j"].value


def test_an_estimate_makes_the_interval_wider() -> None:
    def width(found: Estimates) -> float:
        interval = found.values["latency_ms"].interval
        return interval.high / interval.low

    assert width(predicted(with_limit(70))) > width(predicted(with_limit(300)))


@pytest.mark.parametrize(
    ("name", "precision"), [("RTX-2080-Ti", "fp16"), ("T4", "fp32"), ("L40S", "fp16")]
)
def test_a_measured_gpu_is_left_as_it_is(name: str, precision: str) -> None:
    device = find(name)
    lower = replace(device, power_limit_w=0.6 * device.known("power_limit_w"))
    latency = predicted(device, precision).values["latency_ms"]
    assert predicted(lower, precision).values["latency_ms"] == latency


def test_a_board_without_a_known_limit_has_none() -> None:
    assert not slowed(predicted(replace(find("T4"), name="My T4", power_limit_w=None)))
