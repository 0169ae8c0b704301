"""How far a model is from those measured, and what that does to its interval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.errors import CheckpointError
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.models.intervals import (
    FEATURES,
    LEAST_NOVELTY,
    SEEN,
    UNSEEN,
    IntervalLaw,
    interval_features,
)
from dippm.models.novelty import MOST_ROWS, TENSOR, MeasuredModels, shares_of

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
    assert KNOWN.novelty(asked) == pytest.approx(distance)


def test_shares_are_those_of_classes_and_not_of_kernels() -> None:
    kind = np.array([CLASSES.index("gemm"), CLASSES.index("copy")] * 2)
    found = shares_of(kind, np.array([1.0, 2.0, 3.0, 2.0]))
    assert found == pytest.approx(point(gemm=0.5, copy=0.5))


@pytest.mark.parametrize("ms", [[], [np.inf], [np.nan], [0.0]])
def test_shares_of_nothing_finite_are_no_numbers_to_divide(ms) -> None:
    shares = shares_of(np.zeros(len(ms), dtype=np.int64), np.array(ms))
    assert not shares.any()
    assert 0 < KNOWN.novelty(shares) <= 1


def test_a_far_model_has_a_wider_interval_than_kin() -> None:
    coefficients = tuple(0.3 if name == "log_novelty" else 0.0 for name in FEATURES)
    law = IntervalLaw(coefficients, {SEEN: 0.2, UNSEEN: 0.4})

    def width(novelty: float) -> float:
        return law.half_width(interval_features(0.02, 0.0, 0.0, False, 100, novelty), SEEN)

    assert width(0.3) > 1.5 * width(0.05)
    assert width(0.0) == width(LEAST_NOVELTY)


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
