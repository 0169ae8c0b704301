"""How sure the first of a ranking is."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from dippm.decide.choice import probability
from dippm.decide.choice.probability import (
    UncertainValue,
    correlation,
    log_sd,
    probabilities_first,
)
from dippm.estimate.models.targets import Estimate, Interval


def place(name, value, sd=0.1, **rest):
    return UncertainValue(name, rest.pop("board", name), math.log(value), sd, **rest)


def probability_below(one, other):
    """Return the probability that one place is below another: the closed form for two."""
    shared = correlation(one, other) * one.log_sd * other.log_sd
    own = one.log_sd**2 + other.log_sd**2 + one.other_log_sd**2 + other.other_log_sd**2
    spread = math.sqrt(max(0.0, own - 2 * shared))
    distance = other.log_value - one.log_value
    if spread == 0.0:
        return 0.5 if distance == 0.0 else float(distance > 0.0)
    return NormalDist().cdf(distance / spread)


@pytest.mark.parametrize("ratio", [1.0, 1.02, 1.1, 1.3])
@pytest.mark.parametrize("board", ["a", "b"])
@pytest.mark.parametrize("measured", [True, False])
def test_draws_agree_with_the_closed_form_for_two(ratio, board, measured):
    one = place("a", 10.0, board="a", measured=measured)
    two = place("b", 10.0 * ratio, 0.2, board=board, other_log_sd=0.05, measured=measured)
    first, second = probabilities_first([one, two])
    assert first + second == pytest.approx(1)
    assert first == pytest.approx(probability_below(one, two), abs=0.012)


def test_what_two_places_share_cancels(monkeypatch):
    pair = [place("a", 10.0), place("b", 11.0)]
    monkeypatch.setattr(probability, "SHARED_BOARD", 0.95)
    chances = []
    for shared in (0.0, 0.4, 0.9):
        monkeypatch.setattr(probability, "SHARED", shared)
        chances.append(probabilities_first(pair)[0])
    assert chances == sorted(chances)
    assert chances[-1] > chances[0] + 0.1
    same_board = [place("a", 10.0, board="x"), place("b", 11.0, board="x")]
    assert probabilities_first(same_board)[0] > chances[-1]


def test_slices_of_one_board_go_together_at_least_as_much_as_gpus():
    a, b, c = place("a", 1, board="x"), place("b", 1, board="x"), place("c", 1, board="y")
    assert 0 < correlation(a, c) <= correlation(a, b) < 1
    new = place("d", 1, measured=False)
    assert correlation(a, new) <= correlation(a, c)


def test_order_and_company_change_nothing():
    places = [place(name, value) for name, value in zip("abc", (10.0, 10.4, 11.0), strict=True)]
    forth, back = probabilities_first(places), probabilities_first(places[::-1])
    assert forth == back[::-1]
    assert forth == sorted(forth, reverse=True)
    far = probabilities_first([*places, place("d", 1e6)])
    assert far == [*forth, 0.0]


def test_two_names_of_one_hardware_are_one_place():
    places = [place("a", 10.0), place("a", 10.0), place("b", 11.0)]
    first, clone, other = probabilities_first(places)
    assert clone == 0.0
    assert [first, other] == probabilities_first([places[0], places[2]])


def test_no_error_is_certainty_and_one_place_is_first():
    assert probabilities_first([place("a", 2.0, 0.0), place("b", 1.0, 0.0)]) == [0.0, 1.0]
    assert probability_below(place("a", 1.0, 0.0), place("b", 2.0, 0.0)) == 1.0
    assert probability_below(place("a", 1.0, 0.0), place("b", 1.0, 0.0)) == 0.5
    assert probabilities_first([place("a", 2.0)]) == [1.0]
    assert probabilities_first([]) == []


def test_an_interval_states_its_standard_deviation():
    sd = 0.12
    interval = Interval(math.exp(-1.6449 * sd), math.exp(1.6449 * sd), 0.9)
    assert log_sd(interval) == pytest.approx(sd, rel=1e-4)
    energy = Interval(math.exp(-1.6449 * 0.2), math.exp(1.6449 * 0.2), 0.9)
    found = UncertainValue.of("a", "a", Estimate(1, energy), Estimate(1, interval), measured=True)
    assert found.log_sd == pytest.approx(sd, rel=1e-4)
    assert found.other_log_sd == pytest.approx(0.16, rel=1e-3)
