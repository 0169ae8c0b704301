from __future__ import annotations

import math

import numpy as np
import pytest

from training.evaluation import metrics


def test_errors_of_three_rows_by_hand() -> None:
    e = metrics.errors([10, 100, 1000], [11, 96, 1000])
    assert e.n == 3
    assert e.mape == pytest.approx((10 + 4 + 0) / 3)
    assert e.median_ape == pytest.approx(4)
    assert e.acc5 == pytest.approx(200 / 3)
    assert e.acc10 == pytest.approx(100)
    assert e.rmspe == pytest.approx(math.sqrt((100 + 16) / 3))
    assert e.log_bias == pytest.approx((math.log(1.1) + math.log(0.96)) / 3)
    assert e.geo == pytest.approx(100 * math.expm1((math.log(1.1) - math.log(0.96)) / 3))
    assert e.tau == pytest.approx(1)


def test_half_and_double_are_equally_wrong_geometrically_only() -> None:
    half, double = metrics.errors([1.0], [0.5]), metrics.errors([1.0], [2.0])
    assert half.geo == pytest.approx(double.geo)
    assert half.mape < double.mape


def test_macro_counts_each_family_once() -> None:
    actual = np.ones(10)
    predicted = np.array([1.1] * 9 + [2.0])
    grouped = metrics.grouped_errors(actual, predicted, ["vgg"] * 9 + ["swin"])
    assert grouped.micro.mape == pytest.approx(19)
    assert grouped.macro.mape == pytest.approx(55)
    assert grouped.macro.n == 2
    assert grouped.worst == "swin"


def test_resampling_architectures_is_wider_than_resampling_rows() -> None:
    generator = np.random.default_rng(0)
    architecture = np.repeat(np.arange(20), 50)
    bias = np.repeat(generator.normal(0, 0.2, 20), 50)
    predicted = np.exp(bias)
    by_architecture = metrics.bootstrap(np.ones(1000), predicted, architecture, n_resamples=300)
    by_row = metrics.bootstrap(np.ones(1000), predicted, np.arange(1000), n_resamples=300)
    width = by_architecture[1] - by_architecture[0]
    assert width > 3 * (by_row[1] - by_row[0])
    assert by_architecture[0] < metrics.mean_ape(np.ones(1000), predicted) < by_architecture[1]


def test_intervals_are_scored_by_coverage_and_width() -> None:
    assert metrics.coverage([1, 2, 3, 4], [0, 0, 0, 5], [2, 2, 2, 6]) == 0.5
    assert metrics.relative_width([1, 2], [0.5, 1], [1.5, 3]) == pytest.approx(100)


@pytest.mark.parametrize("predicted", [[1.0], [1.0, 0.0], [1.0, -1.0]])
def test_what_cannot_be_compared_is_refused(predicted: list[float]) -> None:
    with pytest.raises(ValueError, match=r"shape|above 0"):
        metrics.errors([1.0, 2.0], predicted)
