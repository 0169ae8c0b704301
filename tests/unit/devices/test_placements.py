"""Where MIG slices lie: the table of drivers, how many sets are valid, how several are arranged."""

from __future__ import annotations

import pytest

from dippm.devices import all_devices, find
from dippm.devices.mig import (
    Placement,
    arrange,
    arrangements,
    free,
    maximal_arrangements,
    places,
)

A100 = find("A100-40GB")
OF_SEVEN = {
    "1g.5gb": ([0, 1, 2, 3, 4, 5, 6], 1),
    "1g.10gb": ([0, 2, 4, 6], 2),
    "2g.10gb": ([0, 2, 4], 2),
    "3g.20gb": ([0, 4], 4),
    "4g.20gb": ([0], 4),
    "7g.40gb": ([0], 8),
}
WITH_SEVEN = [d for d in all_devices() if any(p.compute_slices == 7 for p in d.mig_profiles)]


def test_places_are_those_that_the_driver_lists():
    for profile, (starts, size) in OF_SEVEN.items():
        of_it = [place for place in places(A100) if place.profile == profile]
        assert [place.start for place in of_it] == starts
        assert {place.size for place in of_it} == {size}


def test_a_gpu_of_four_slices_is_divided_in_four():
    starts = {p.name: [q.start for q in places(find("A30")) if q.profile == p.name]
              for p in find("A30").mig_profiles}  # fmt: skip
    assert starts == {"1g.6gb": [0, 1, 2, 3], "2g.12gb": [0, 2], "4g.24gb": [0]}


@pytest.mark.parametrize("device", WITH_SEVEN, ids=lambda d: d.name)
def test_722_sets_are_valid_and_78_of_them_maximal(device):
    if len(device.mig_profiles) != len(OF_SEVEN):
        pytest.skip("lists fewer profiles")
    every = [frozenset(found) for found in arrangements(device)]
    assert (len(every), len(set(every))) == (722, 722)
    maximal = {frozenset(found) for found in maximal_arrangements(device)}
    assert len(maximal) == 78
    assert maximal <= set(every)
    assert not any(one < other for one in maximal for other in every)


def test_no_valid_set_has_more_slices_than_the_gpu():
    of = {profile.name: profile for profile in A100.mig_profiles}
    for found in arrangements(A100):
        assert sum(of[place.profile].compute_slices for place in found) <= 7
        taken = [n for place in found for n in range(place.start, place.start + place.size)]
        assert len(taken) == len(set(taken))
        assert max(taken) < 8


def test_a_gpu_without_mig_has_no_places():
    assert places(find("V100")) == ()
    assert list(arrangements(find("V100"))) == []


def test_several_slices_find_places_in_their_order():
    found = arrange(["1g.5gb", "4g.20gb", "2g.10gb"], places(A100))
    assert found is not None
    assert [place.profile for place in found] == ["1g.5gb", "4g.20gb", "2g.10gb"]
    assert frozenset(found) in {frozenset(each) for each in arrangements(A100)}


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (["3g.20gb"] * 2, True),
        (["3g.20gb"] * 3, False),
        (["4g.20gb"] * 2, False),  # 4g lies at 0 only
        (["1g.5gb"] * 7, True),
        (["1g.5gb"] * 8, False),
        (["2g.10gb"] * 3 + ["1g.5gb"], True),
        (["3g.20gb", "3g.20gb", "1g.5gb"], False),  # 3g + 3g strand a compute slice
        (["7g.40gb", "1g.5gb"], False),
        (["5g.30gb"], False),
    ],
)
def test_what_fits_is_what_a_valid_set_holds(wanted, fits):
    assert (arrange(wanted, places(A100)) is not None) is fits
    sets = [sorted(place.profile for place in found) for found in arrangements(A100)]
    assert (sorted(wanted) in sets) is fits


def test_what_is_there_is_gone_round():
    there = [Placement("1g.5gb", 0, 1)]
    assert arrange(["4g.20gb"], places(A100), there) is None
    assert arrange(["3g.20gb"], places(A100), there) == (Placement("3g.20gb", 4, 4),)


def test_the_largest_places_stay_free():
    first = arrange(["1g.5gb"], places(A100))
    assert first is not None
    assert first[0].start >= 4  # 4g, which lies at 0 only, stays possible
    assert Placement("4g.20gb", 0, 4) in free(places(A100), first)
