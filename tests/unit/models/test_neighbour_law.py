"""The law of neighbours as properties: what has to hold whatever was fitted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from dippm.estimate.models.neighbour_law import (
    Load,
    NeighbourLaw,
    Shared,
    fair_share,
    fitted,
    shared_latency_ms,
)

LAWS = (fitted(), NeighbourLaw(1.0, 1.0, 1.0), NeighbourLaw(1.3, 0.0, 50.0))
SHARED: tuple[Shared, ...] = ("mps", "time-slicing")


def some_load(random: Random) -> Load:
    kernel_ms = random.uniform(0.1, 50.0)
    alone_ms = kernel_ms + random.choice([0.0, random.uniform(0.0, 80.0)])
    filled_ms = kernel_ms * random.uniform(0.05, 1.0)
    return Load(alone_ms, filled_ms, kernel_ms, random.uniform(0.0, 2.0), random.randint(1, 600))


LOADS = [some_load(Random(seed)) for seed in range(60)]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shared", SHARED)
def test_one_process_is_alone(law: NeighbourLaw, shared: Shared) -> None:
    for load in LOADS:
        (found,) = law.together([load], shared)
        assert found.value == pytest.approx(load.alone_ms)
        assert found.least == pytest.approx(load.alone_ms)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shared", SHARED)
def test_copies_are_never_faster_than_alone_or_than_the_full_gpu(
    law: NeighbourLaw, shared: Shared
) -> None:
    for load in LOADS:
        demand_ms, times = law.demand_ms(load, shared), []
        for copies in range(1, 9):
            found = law.together([load] * copies, shared)
            assert len(set(found)) == 1
            value = found[0].value
            assert value >= max(load.alone_ms, copies * demand_ms) * (1 - 1e-9)
            assert found[0].least <= value * (1 + 1e-9)
            assert value <= found[0].most
            times.append(value)
        assert all(earlier <= later * (1 + 1e-9) for earlier, later in pairwise(times))
        rates = [copies / ms for copies, ms in enumerate(times, 1)]
        assert all(rate <= n / load.alone_ms * (1 + 1e-9) for n, rate in enumerate(rates, 1))


@pytest.mark.parametrize("shared", SHARED)
def test_one_more_neighbour_never_makes_anyone_faster(shared: Shared) -> None:
    random = Random(1)
    for _ in range(200):
        some = random.sample(LOADS, random.randint(1, 6))
        before = fitted().together(some, shared)
        after = fitted().together([*some, random.choice(LOADS)], shared)
        for one, other in zip(before, after, strict=False):
            assert one.value <= other.value * (1 + 1e-9)
            assert one.most <= other.most * (1 + 1e-9)


def test_a_process_does_not_care_in_which_order_its_neighbours_are() -> None:
    found = fitted().together(LOADS[:4], "mps")
    turned = fitted().together(LOADS[3::-1], "mps")
    assert [t.value for t in found] == pytest.approx([t.value for t in reversed(turned)])


def test_a_neighbour_that_does_nothing_costs_nothing() -> None:
    idle = Load(alone_ms=100.0, filled_ms=0.0, kernel_ms=0.0)
    for shared in SHARED:
        assert fitted().together([LOADS[0], idle], shared)[0].value == pytest.approx(
            LOADS[0].alone_ms
        )


def test_what_neighbours_leave_is_shared_fairly() -> None:
    assert fair_share([]) == 1.0
    assert fair_share([1.0, 1.0]) == pytest.approx(1 / 3)
    assert fair_share([0.1]) == pytest.approx(0.9)
    assert fair_share([0.1, 1.0]) == pytest.approx(0.45)
    assert fair_share([0.0] * 5) == 1.0


def test_time_slices_gain_nothing_from_kernels_that_leave_multiprocessors_idle() -> None:
    load = Load(alone_ms=10.0, filled_ms=2.0, kernel_ms=10.0)
    mps, sliced = (fitted().together([load] * 2, shared)[0].value for shared in SHARED)
    assert mps < sliced == pytest.approx(20.0)
    assert fitted().together([load] * 3, "time-slicing")[0].most == 30.0


def test_a_high_corner_does_not_overflow() -> None:
    assert shared_latency_ms(1e-3, 1e-3, 1e-2, 50.0) == pytest.approx(0.1)


def test_the_corner_alone_decides_between_the_two_limits() -> None:
    load = Load(alone_ms=10.0, filled_ms=5.0, kernel_ms=5.0)
    soft, hard = (
        replace(fitted(), work=1.0, copy=0.0, corner=corner).together([load] * 2, "mps")[0].value
        for corner in (1.0, 50.0)
    )
    assert 10.0 <= hard < 10.2 < soft <= 15.0
