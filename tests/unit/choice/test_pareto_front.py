"""The front against its definition."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from dippm.decide.pareto import pareto_front

POINTS = st.integers(1, 4).flatmap(
    lambda m: st.lists(st.lists(st.integers(0, 5), min_size=m, max_size=m), max_size=40)
)


def dominates(one, other):
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


@given(POINTS)
def test_a_point_is_a_member_where_no_point_beats_it_and_equal_points_are_together(points):
    members = pareto_front(points)
    assert [points[i] for i in members] == sorted(points[i] for i in members)
    for i, point in enumerate(points):
        is_beaten = any(dominates(other, point) for other in points)
        assert (i in members) == (not is_beaten)
