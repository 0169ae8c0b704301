"""What measured models nearby add to a prediction."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dippm.devices import find
from dippm.errors import CheckpointError
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel_features import N_FEATURES
from dippm.estimate.models.residuals import (
    CUT_OFF,
    LENGTH,
    N_COORDINATES,
    POINTS,
    WEIGHTS,
    MeasuredResiduals,
    distances,
    dual_weights,
    matern32,
    posterior_mean,
)

LINE = {"device": "A100-40GB", "mode": "eager", "precision": "amp", "channels_last": False}
ERRORS = np.array([0.1, -0.2])
AT = np.zeros((2, N_COORDINATES))
AT[1, 0] = 10.0


def arrays() -> dict[str, np.ndarray]:
    return {
        POINTS: AT.astype(np.float16),
        WEIGHTS: dual_weights(AT, ERRORS).astype(np.float32),
    }


def read(tensors: dict[str, np.ndarray], *lines: dict[str, Any]) -> MeasuredResiduals:
    mean, scale = np.zeros(N_FEATURES), np.ones(N_FEATURES)
    return MeasuredResiduals.from_checkpoint(tensors, lines, mean, scale)


KNOWN = read(arrays(), {**LINE, "rows": 2})
ASKED = Conditions(device=find("A100-40GB"), batch=8, precision="amp")


def found(c: Conditions = ASKED, away: float = 0.0, name: str = "A100-40GB") -> float:
    """Two kernels, one as far above the first measured model as the other is below."""
    features = np.zeros((2, N_FEATURES))
    features[:, 1] = away + 3.0, away - 3.0
    features[:, -1] = 5.0  # a descriptor of the GPU
    return KNOWN.log_correction(c, name, features, np.array([2.0, 2.0]))


def test_a_measured_model_has_most_of_what_was_left_over_of_it() -> None:
    assert 0.9 * ERRORS[0] < found() < ERRORS[0]


def test_it_fades_with_the_distance() -> None:
    values = [found(away=step) for step in np.linspace(0.0, 3 * CUT_OFF, 20)]
    assert all(a > b for a, b in pairwise(values))
    assert values[-1] < 1e-3 * ERRORS[0]


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, precision="fp16"),
        replace(ASKED, mode="compiled"),
        replace(ASKED, channels_last=True),
        replace(ASKED, mig=find("A100-40GB").mig_profiles[0]),
    ],
)
def test_rows_under_other_conditions_say_nothing(other: Conditions) -> None:
    assert found(other) == 0.0


def test_rows_of_another_gpu_say_nothing() -> None:
    assert found(name="H100-SXM-80GB") == 0.0


def test_a_model_without_kernels_has_nothing_added() -> None:
    assert KNOWN.log_correction(ASKED, "A100-40GB", np.zeros((0, N_FEATURES)), np.zeros(0)) == 0.0


def test_equal_rows_share_what_is_left_over() -> None:
    points = np.zeros((4, N_COORDINATES))
    weights = dual_weights(points, np.array([0.1, 0.3, 0.1, 0.3]))
    assert posterior_mean(points[:1], points, weights)[0] == pytest.approx(0.2, rel=0.02)


def test_matern32_is_a_kernel() -> None:
    points = np.random.default_rng(0).normal(size=(50, N_COORDINATES))
    covariance = matern32(distances(points, points))
    assert np.diag(covariance) == pytest.approx(np.ones(50), abs=1e-6)
    assert covariance == pytest.approx(covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > -1e-9
    assert matern32(np.array([LENGTH]))[0] == pytest.approx((1 + 3**0.5) * np.exp(-(3**0.5)))


def test_a_checkpoint_without_them_adds_nothing() -> None:
    assert read({}).groups == {}


@pytest.mark.parametrize(
    "change",
    [
        {POINTS: AT[:1]},
        {POINTS: AT[:, 1:]},
        {WEIGHTS: np.zeros(3)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, np.ndarray]) -> None:
    with pytest.raises(CheckpointError, match="residuals"):
        read({**arrays(), **change}, {**LINE, "rows": 2})
