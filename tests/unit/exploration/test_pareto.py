"""The front against its definition."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from dippm.decide.exploration.pareto import front

POINTS = st.integers(1, 4).flatmap(
    lambda m: st.lists(st.lists(st.integers(0, 5), min_size=m, max_size=m), max_size=40)
)


def dominates(one, other):
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


@given(POINTS)
def test_no_point_beats_a_member_and_each_other_is_beaten_or_equal(points):
    members = front(points)
    for i, point in enumerate(points):
        is_beaten = any(dominates(other, point) for other in points)
        has_earlier_equal = point in points[:i]
        assert (i in members) == (not is_beaten and not has_earlier_equal)
