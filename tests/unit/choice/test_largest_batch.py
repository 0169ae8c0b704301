"""The largest batch that a memory holds."""

from __future__ import annotations

import pytest

from dippm.estimate.conditions import MAX_BATCH
from dippm.estimate.largest_batch import largest_batch

CURVES = {
    "line": lambda batch: 500 + 7 * batch,
    "steps": lambda batch: 500 + 20 * (batch // 3),
    "square": lambda batch: 500 + 0.01 * batch**2,
    "bent": lambda batch: 500 + min(batch, 100) * 40 + max(0, batch - 100),
    "flat, then steep": lambda batch: 500 if batch <= 700 else 500 + 1e4 * (batch - 700),
}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("room_mb", [100, 500, 507, 519, 520, 1000, 4864, 40960, 81920])
def test_the_largest_batch_is_found_whatever_the_curve(curve, room_mb):
    looks = []

    def bound_mb(batch):
        looks.append(batch)
        return CURVES[curve](batch)

    found = largest_batch(bound_mb, room_mb)
    if found is None:
        assert CURVES[curve](1) > room_mb
    else:
        assert CURVES[curve](found) <= room_mb < CURVES[curve](found + 1)
    assert len(looks) <= 60
    if curve == "line":
        assert len(looks) <= 20


def test_what_is_not_known_does_not_fit_and_there_is_an_end():
    assert largest_batch(lambda batch: None, 1000) is None
    assert largest_batch(lambda batch: 1.0 if batch <= 37 else None, 1000) == 37
    assert largest_batch(lambda batch: 1.0, 1000) == MAX_BATCH
    assert largest_batch(lambda batch: float(batch), 64, most=64) == 64
    assert largest_batch(lambda batch: float(batch), 63, most=64) == 63
    assert largest_batch(lambda batch: float(batch), 63, most=63) == 63
    assert largest_batch(lambda batch: float(batch), 62, most=63) == 62


def test_a_memory_without_end_is_asked_about_rarely():
    """The predictor of CPUs needs half a second for each."""
    looks = []
    assert largest_batch(lambda batch: looks.append(batch) or 1.0, 1000) == MAX_BATCH
    assert len(looks) <= 21
