"""Thinning never loses what a reader looks for: extremes, ends and gaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.show.report.runs.charts import extremes

NUMBERS = st.floats(-1e300, 1e300) | st.just(float("nan"))


@given(st.lists(NUMBERS, max_size=400), st.integers(4, 60))
def test_extremes_and_ends_are_never_lost(values, most):
    values = np.array(values, dtype=np.float64)
    rows = extremes(values, most)
    assert len(rows) <= max(most, 0)
    assert (np.diff(rows) > 0).all()
    if not len(values):
        return
    assert (rows[0], rows[-1]) == (0, len(values) - 1)
    if np.isfinite(values).any():
        assert np.nanmax(values[rows]) == np.nanmax(values)
        assert np.nanmin(values[rows]) == np.nanmin(values)


@given(st.lists(st.floats(-1e9, 1e9), min_size=200, max_size=400), st.integers(4, 60))
def test_each_stretch_keeps_its_own_extremes(values, most):
    values = np.array(values)
    kept = set(extremes(values, most).tolist())
    size = -(-len(values) // ((most - 2) // 2))
    for first in range(0, len(values), size):
        part = values[first : first + size]
        held = [values[row] for row in range(first, first + len(part)) if row in kept]
        assert (min(held), max(held)) == (part.min(), part.max())


def test_a_single_peak_among_a_million_stays():
    values = np.zeros(1_000_000)
    values[123_457] = 5.0
    rows = extremes(values, 1000)
    assert 123_457 in rows
    assert len(rows) <= 1000


def test_a_gap_stays_a_gap():
    values = np.ones(1000)
    values[400:600] = np.nan
    kept = values[extremes(values, 40)]
    assert np.isnan(kept).any()


def test_few_points_stay_as_they_are():
    assert extremes(np.arange(10.0), 10).tolist() == list(range(10))


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="4 points"):
        extremes(np.arange(10.0), 3)
