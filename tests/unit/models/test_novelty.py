"""How far a model is from those measured, and what that does to its interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.devices import find
from dippm.devices.device import Calibration
from dippm.errors import CheckpointError
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.models.intervals import (
    FEATURES,
    LEAST_NOVELTY,
    MOST_GPU_NOVELTY,
    REFERENCE,
    SEEN,
    UNSEEN,
    IntervalLaw,
    interval_features,
    interval_group,
)
from dippm.estimate.models.novelty import (
    GPUS_TENSOR,
    MOST_ROWS,
    TENSOR,
    MeasuredModels,
    Novelty,
    shares_of,
)

CLASSES = list(KERNEL_CLASSES)


def point(**shares: float) -> np.ndarray:
    found = np.zeros(len(CLASSES))
    for name, share in shares.items():
        found[CLASSES.index(name)] = share
    return found


KNOWN = MeasuredModels(np.array([point(gemm=0.8, softmax=0.2), point(conv_spatial=1.0)]))


@pytest.mark.parametrize(
    ("asked", "distance"),
    [
        (point(conv_spatial=1.0), 0.0),
        (point(gemm=0.7, softmax=0.3), 0.1),
        (point(conv_spatial=0.6, pool=0.4), 0.4),
        (point(recurrent=1.0), 1.0),
    ],
)
def test_novelty_is_the_share_of_time_that_would_have_to_move(asked, distance) -> None:
    assert KNOWN.novelty(asked).on_any == pytest.approx(distance)


def test_a_folded_norm_leaves_a_bias_and_the_model_as_near() -> None:
    """An exporter folds batch norms: a bias follows each convolution in their place."""
    measured = MeasuredModels.from_tensors({TENSOR: point(conv_spatial=0.7, batch_norm=0.3)[None]})
    kinds = np.array([CLASSES.index("conv_spatial"), CLASSES.index("broadcast")])
    assert measured.novelty(shares_of(kinds, np.array([0.7, 0.3]))).on_any == pytest.approx(0.0)
    biased = MeasuredModels.from_tensors({TENSOR: point(conv_spatial=0.7, broadcast=0.3)[None]})
    assert np.array_equal(biased.shares, measured.shares)


def test_shares_are_those_of_classes_and_not_of_kernels() -> None:
    kind = np.array([CLASSES.index("gemm"), CLASSES.index("copy")] * 2)
    found = shares_of(kind, np.array([1.0, 2.0, 3.0, 2.0]))
    assert found == pytest.approx(point(gemm=0.5, copy=0.5))


@pytest.mark.parametrize("ms", [[], [np.inf], [np.nan], [0.0]])
def test_shares_of_nothing_finite_are_no_numbers_to_divide(ms) -> None:
    shares = shares_of(np.zeros(len(ms), dtype=np.int64), np.array(ms))
    assert not shares.any()
    assert 0 < KNOWN.novelty(shares).on_any <= 1


def test_what_was_measured_on_the_gpu_is_told_apart_from_what_was_on_others() -> None:
    there = {"A": np.array([True, False]), "B": np.array([True, True])}
    known = MeasuredModels(KNOWN.shares, there)
    asked = point(conv_spatial=0.9, pool=0.1)
    assert known.novelty(asked, "B") == pytest.approx((0.1, 0.1))
    assert known.novelty(asked, "A") == pytest.approx((0.1, 1.0))
    assert known.novelty(asked, "C") == pytest.approx((0.1, 1.0))
    assert KNOWN.novelty(asked, "C") == pytest.approx((0.1, 0.1))


def test_a_far_model_has_a_wider_interval_than_kin() -> None:
    coefficients = tuple(0.3 if name == "log_novelty" else 0.0 for name in FEATURES)
    law = IntervalLaw(coefficients, {SEEN: 0.2, UNSEEN: 0.4})

    def width(novelty: float) -> float:
        return law.half_width(interval_features(0.02, 0.0, 0.0, False, 100, novelty, 1.0), SEEN)

    assert width(0.3) > 1.5 * width(0.05)
    assert width(0.0) == width(LEAST_NOVELTY)


def test_a_law_of_a_checkpoint_that_told_no_gpus_apart_says_what_it_said() -> None:
    coefficients = tuple(0.1 * i for i in range(len(FEATURES)))
    asked = interval_features(0.02, 0.3, 0.0, True, 100, 0.1, 0.4)
    told = IntervalLaw((*coefficients[:-1], 0.0), {SEEN: 0.2, UNSEEN: 0.4})
    older = IntervalLaw(coefficients[:-1], told.quantile)
    assert older.half_width(asked, SEEN) == told.half_width(asked, SEEN)


LEARNED = ("A100-40GB", "T4")
FAR, NEAR_BY = Novelty(0.2, 1.0), Novelty(0.2, 0.3)


@pytest.mark.parametrize(
    ("device", "novelty", "launches", "group"),
    [
        ("A100-40GB", NEAR_BY, 100, (SEEN, 0.3)),
        ("T4", FAR, 100, (UNSEEN, 1.0)),
        ("T4", FAR, 1, (SEEN, 0.2)),
        ("L40S", FAR, 1, (UNSEEN, 1.0)),
    ],
)
def test_a_gpu_is_measured_for_models_if_a_model_was(device, novelty, launches, group) -> None:
    assert interval_group(find(device), LEARNED, novelty, launches) == group


def test_a_gpu_with_a_head_has_widths_of_its_own_and_older_checkpoints_have_none() -> None:
    def group(novelty: Novelty, launches: float = 100) -> str:
        return interval_group(find("T4"), LEARNED, novelty, launches, has_head=True)[0]

    assert group(NEAR_BY) == REFERENCE
    assert group(FAR) == UNSEEN
    assert group(NEAR_BY, 1) == SEEN
    asked = interval_features(0.02, 0.3, 0.0, True, 100, 0.1, 0.4)
    nothing = (0.0,) * len(FEATURES)
    told = IntervalLaw(nothing, {REFERENCE: 0.1, SEEN: 0.2, UNSEEN: 0.4})
    older = IntervalLaw(nothing, {SEEN: 0.2, UNSEEN: 0.4})
    assert told.half_width(asked, REFERENCE) == pytest.approx(0.1)
    assert older.half_width(asked, REFERENCE) == older.half_width(asked, SEEN)


@pytest.mark.parametrize(("base", "group"), [("L40S", (UNSEEN, 1.0)), ("A100-40GB", (SEEN, 0.3))])
def test_a_calibration_leaves_the_group_to_what_a_checkpoint_learned(base, group) -> None:
    found = Calibration(base=base, log_slowdown=0.1, rows=10, novelty=0.15)
    device = replace(find("L40S"), calibration=found)
    novelty = NEAR_BY if base in LEARNED else FAR
    assert interval_group(device, LEARNED, novelty, 100) == group


def array(rows: int, dtype: type = np.float16) -> np.ndarray:
    return np.tile(point(gemm=1), (rows, 1)).astype(dtype)


def test_shares_are_read_in_half_precision() -> None:
    third = np.tile(point(gemm=1 / 3, copy=1 / 3, pool=1 / 3), (2, 1)).astype(np.float16)
    assert MeasuredModels.from_tensors({TENSOR: third}).shares.dtype == np.float32


DAMAGED: dict[str, Any] = {
    "one row": array(1)[0],
    "no row": array(0),
    "too many rows": array(MOST_ROWS + 1),
    "a class too few": array(3)[:, 1:],
    "whole numbers": array(3, np.int32),
    "not a number": array(3) * np.float16("nan"),
    "infinite": array(3) * np.float16("inf"),
    "below 0": array(3) - np.eye(3, len(CLASSES), dtype=np.float16),
    "no shares": array(3) * np.float16(2),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_damaged_shares_are_refused(damage) -> None:
    with pytest.raises(CheckpointError, match=TENSOR) as error:
        MeasuredModels.from_tensors({TENSOR: DAMAGED[damage]})
    assert error.value.hint


def test_a_checkpoint_without_shares_is_refused() -> None:
    with pytest.raises(CheckpointError, match=TENSOR):
        MeasuredModels.from_tensors({})


def test_gpus_are_read_in_the_order_of_their_names() -> None:
    columns = np.array([[1, 0], [1, 1], [0, 1]], dtype=np.uint8)
    found = MeasuredModels.from_tensors({TENSOR: array(3), GPUS_TENSOR: columns}, ["A", "B"])
    assert found.on_gpus["A"].tolist() == [True, True, False]
    assert found.on_gpus["B"].tolist() == [False, True, True]


DAMAGED_GPUS: dict[str, Any] = {
    "missing": None,
    "another shape": np.ones((2, 2), dtype=np.uint8),
    "another type": np.ones((3, 2), dtype=np.float16),
    "values": np.full((3, 2), 2, dtype=np.uint8),
    "a gpu without points": np.tile(np.array([1, 0], dtype=np.uint8), (3, 1)),
}


@pytest.mark.parametrize("damage", DAMAGED_GPUS)
def test_damaged_gpus_are_refused(damage) -> None:
    found = DAMAGED_GPUS[damage]
    tensors = {TENSOR: array(3), **({} if found is None else {GPUS_TENSOR: found})}
    with pytest.raises(CheckpointError, match=GPUS_TENSOR) as error:
        MeasuredModels.from_tensors(tensors, ["A", "B"])
    assert error.value.hint


def test_beyond_a_distance_what_was_measured_on_a_gpu_is_equally_far() -> None:
    def feature(gpu_novelty: float) -> float:
        return interval_features(0.02, 0.0, 0.0, False, 100, 0.1, gpu_novelty)[-1]

    assert feature(0.05) < feature(0.2) < feature(MOST_GPU_NOVELTY)
    assert feature(MOST_GPU_NOVELTY) == feature(0.9) == feature(1.0)
