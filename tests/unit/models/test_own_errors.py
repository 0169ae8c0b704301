"""How wide the interval of a GPU is that its owner calibrated with models."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dataset.measured.nodes import GraphBuilder
from dippm.devices import CalibratedModel, Calibration, Device, find
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.models.intervals import (
    MOST_GPU_NOVELTY,
    NOVELTY_POWER,
    SEEN,
    UNSEEN,
    USUAL_LOG_SD,
    USUAL_MODELS,
    IntervalLaw,
    IntervalTerms,
    OwnErrors,
    own_errors,
    student_quantile,
)
from tests.unit.models.test_hybrid import conditions, predictor, width

CLASSES = list(KERNEL_CLASSES)
Z90 = 1.645
UNSEEN_WIDTH = 2 * 0.4
"""Of `predictor` on a GPU that it did not learn, log of high over low."""


def calibration(log_error: float, *, models: int = 10, **given: Any) -> Calibration:
    """Made-up models, all alike, that were off by as much while they were left out."""
    shares = {"gemm": 0.75, "activation": 0.25}
    made = [
        CalibratedModel(name=f"model {i}", log_error=log_error, distance=0.3, shares=shares)
        for i in range(models)
    ]
    return Calibration(
        **{
            "base": "L40S",
            "log_slowdown": 0.1,
            "rows": models,
            "launch_log_sd": 0.0,
            "models": tuple(made),
            **given,
        }
    )


def point(**shares: float) -> np.ndarray:
    return np.array([shares.get(name, 0.0) for name in CLASSES])


def test_the_width_follows_the_errors_left_out_and_the_distance() -> None:
    found = calibration(0.02)
    near, far = (
        own_errors(found, point(gemm=0.75 - away, activation=0.25 + away)) for away in (0.075, 0.3)
    )
    freedom = USUAL_MODELS + 10
    variance = (USUAL_MODELS * USUAL_LOG_SD**2 + 10 * 0.02**2) / freedom
    assert far.log_sd == pytest.approx(math.sqrt(variance))
    assert near.log_sd == pytest.approx(far.log_sd * (0.075 / MOST_GPU_NOVELTY) ** NOVELTY_POWER)
    assert far.freedom == freedom
    assert far.left_out == pytest.approx(0.02)
    assert own_errors(calibration(0.2), point(gemm=1.0)).log_sd > 2 * far.log_sd


def test_beyond_a_distance_a_model_is_equally_far() -> None:
    found = calibration(0.02)
    assert own_errors(found, point(pool=1.0)) == own_errors(found, point(gemm=0.4, activation=0.6))


def test_a_calibration_that_left_no_model_out_says_nothing_of_widths() -> None:
    assert own_errors(replace(calibration(0.02), models=()), point(gemm=1.0)) is None


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(4, 2.132), (7, 1.895), (14, 1.761), (100, 1.660)]
)
def test_quantiles_are_those_of_student(freedom, quantile) -> None:
    assert student_quantile(1.64485, freedom) == pytest.approx(quantile, rel=0.005)


LAW = IntervalLaw((0.0,), {SEEN: 0.2, UNSEEN: 0.4})


@pytest.mark.parametrize(
    ("log_sd", "left_out", "half", "widened"),
    [
        (0.01, 0.01, 0.01 * student_quantile(Z90, 14), False),
        (0.5, 0.01, 0.4, False),
        (0.5, 0.5, 0.5 * student_quantile(Z90, 14), True),
        (0.01, 0.5, 0.01 * student_quantile(Z90, 14), False),
        (9.0, 9.0, 1.5, True),
    ],
)
def test_it_is_never_wider_than_before_unless_models_left_out_were(
    log_sd, left_out, half, widened
) -> None:
    terms = IntervalTerms((1.0,), UNSEEN, 0.0, 0.0, own=OwnErrors(log_sd, 14, left_out))
    assert terms.half_width(LAW, Z90) == pytest.approx(half)
    assert terms.is_widened(LAW, Z90) is widened


def test_the_spread_of_hosts_goes_and_what_is_open_of_the_launch_time_stays() -> None:
    own = OwnErrors(0.01, 14, 0.01, host_log_sd=0.1)
    terms = IntervalTerms((1.0,), UNSEEN, 0.0, host_log_sd=0.35, own=own)
    expected = math.hypot(0.01 * student_quantile(Z90, 14), Z90 * 0.1)
    assert terms.half_width(LAW, Z90) == pytest.approx(expected)


def deep_perceptron() -> Any:
    """A whole model: of more launches than single operators have."""
    b = GraphBuilder(batch=1009)
    x: Any = b.input((1009, 4096))
    for _ in range(6):
        attributes = {"in_features": 4096, "out_features": 4096}
        x = b.add("dense", [x], (1009, 4096), attributes=attributes, weights=4096 * 4096)
        x = b.add("relu", [x], (1009, 4096))
    return b.graph(batch_is_symbolic=True)


def answered(found: Calibration | None, launch_ms: float = 0.0) -> Any:
    device: Device = find("L40S")
    if found is not None:
        device = replace(device, name="mine", calibration=found)
    asked = replace(conditions(), device=device)
    return predictor(launch_ms).predict(deep_perceptron(), asked)


def test_a_calibrated_gpu_has_a_narrower_interval() -> None:
    assert width(answered(None)) == pytest.approx(UNSEEN_WIDTH)
    answer = answered(calibration(0.02))
    assert width(answer) < UNSEEN_WIDTH / 2
    assert not any("calibration" in words for words in answer.warnings)


def test_a_wider_interval_says_why() -> None:
    answer = answered(calibration(0.6))
    assert width(answer) > UNSEEN_WIDTH
    assert any("±82 % off" in words for words in answer.warnings)


def test_a_file_of_an_older_version_says_how_to_narrow_its_interval() -> None:
    answer = answered(replace(calibration(0.02), models=(), log_error=0.02, novelty=0.1))
    assert width(answer) == pytest.approx(UNSEEN_WIDTH)
    assert any("run `dippm calibrate` again" in words for words in answer.warnings)


def test_a_mode_or_precision_that_no_row_has_keeps_the_interval_it_had() -> None:
    answer = answered(calibration(0.02, regimes=("compiled fp32", "eager fp16")))
    assert width(answer) == pytest.approx(UNSEEN_WIDTH)
    assert any("was calibrated without eager fp32" in words for words in answer.warnings)
    assert width(answered(calibration(0.02, regimes=("eager fp32",)))) < UNSEEN_WIDTH / 2


def test_a_launch_time_that_no_row_showed_is_as_open_as_any() -> None:
    """A latency that the host decides: calibrating with large batches says nothing of it."""
    known, open_ = (
        answered(calibration(0.02, launch_log_sd=sd), launch_ms=5.0) for sd in (0.02, 0.7)
    )
    before = answered(None, launch_ms=5.0)
    assert known.host.log_sd == 0.02
    assert open_.host.log_sd == before.host.log_sd
    assert width(known) < width(open_) / 3
    assert width(open_) <= width(before) + 1e-9
