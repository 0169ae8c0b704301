"""What the page computes before it draws: smoothing, alignment, merging."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the page needs the extra ui")

from dippm.show.ui.lines import RunStart, merged, offsets_s, smoothed


def by_hand(values, weight):
    """Return the average in the words of its definition."""
    found, total, weights = [], 0.0, 0.0
    for value in values:
        if value == value:
            total, weights = total * weight + value, weights * weight + 1
        found.append(total / weights if value == value else np.nan)
    return found


@pytest.mark.parametrize("percent", [1, 50, 90, 99])
def test_smoothing_is_the_weighted_mean_of_what_came_before(percent):
    values = np.random.default_rng(0).normal(5, 2, 300)
    values[[3, 40, 41]] = np.nan
    given = by_hand(values, percent / 100)
    np.testing.assert_allclose(smoothed(values, percent), given, rtol=1e-9)


def test_no_smoothing_changes_nothing():
    values = np.array([1.0, np.nan, 3.0])
    assert smoothed(values, 0) is values


def test_a_constant_stays_what_it_is_from_the_first_point():
    np.testing.assert_allclose(smoothed(np.full(500, 7.0), 99), 7.0)


def test_a_line_without_values_stays_without():
    assert np.isnan(smoothed(np.full(3, np.nan), 50)).all()
    assert len(smoothed(np.empty(0), 50)) == 0


@pytest.mark.parametrize("percent", [-1, 100])
def test_smoothing_out_of_range_is_refused(percent):
    with pytest.raises(ValueError, match="0 to 99"):
        smoothed(np.ones(3), percent)


RUNS = [
    RunStart("a", ("x", "w"), 1_000_000_000_000),
    RunStart("b", ("x", "w"), 1_002_500_000_000),
    RunStart("c", ("x", "other"), 1_100_000_000_000),
    RunStart("d", ("y", "w"), 900_000_000_000),
]


def test_alignment_at_the_start_of_each_run():
    assert offsets_s(RUNS, "run") == dict.fromkeys("abcd", 0.0)


def test_alignment_keeps_how_far_runs_of_a_workload_are_apart():
    assert offsets_s(RUNS, "workload") == {"a": 0.0, "b": 2.5, "c": 0.0, "d": 0.0}


def test_alignment_at_the_clock():
    assert offsets_s(RUNS, "clock")["b"] == 1002.5


def test_merging_gives_mean_and_range_of_runs():
    x = np.arange(100) / 10
    found = merged([(x, np.full(100, 1.0)), (x, np.full(100, 4.0))], 10)
    np.testing.assert_allclose(found.mean, 2.5)
    np.testing.assert_allclose(found.low, 1.0)
    np.testing.assert_allclose(found.high, 4.0)
    assert len(found.x) == 10
    assert found.x[0] < found.x[-1] < 9.9


def test_merging_counts_each_run_once_however_often_it_was_read():
    often, seldom = np.linspace(0, 10, 1001), np.linspace(0, 10, 11)
    found = merged([(often, np.zeros(1001)), (seldom, np.full(11, 10.0))], 50)
    np.testing.assert_allclose(found.mean, 5.0)


def test_merging_loses_no_extreme():
    x = np.arange(1000.0)
    y = np.zeros(1000)
    y[777], y[42] = 9.0, -9.0
    found = merged([(x, y), (x, np.zeros(1000))], 20)
    assert (found.high.max(), found.low.min()) == (9.0, -9.0)


def test_what_is_absent_counts_for_nothing():
    x = np.arange(100.0)
    gone = np.full(100, 8.0)
    gone[50:] = np.nan
    found = merged([(x, np.full(100, 2.0)), (x, gone)], 10)
    np.testing.assert_allclose(found.mean[:5], 5.0)
    np.testing.assert_allclose(found.mean[5:], 2.0)
    alone = merged([(x, gone)], 10)
    assert np.isnan(alone.mean[5:]).all()
    assert np.isnan(alone.low[5:]).all()


def test_a_run_that_ended_sooner_counts_while_it_went_on():
    long, short = np.arange(100.0), np.arange(40.0)
    found = merged([(long, np.full(100, 2.0)), (short, np.full(40, 6.0))], 10)
    np.testing.assert_allclose(found.mean[:4], 4.0)
    np.testing.assert_allclose(found.mean[5:], 2.0)


def test_merging_nothing_gives_nothing():
    assert len(merged([(np.empty(0), np.empty(0))], 10).x) == 0
