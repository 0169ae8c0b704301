"""Objectives and constraints: what may be written, and what nothing can meet."""

from __future__ import annotations

import math

import pytest

from dippm.decide.exploration import (
    ContradictionError,
    ExploreError,
    Objective,
    Space,
    weights_proxy,
)
from dippm.decide.exploration.objectives import constraints_of, objectives_of
from dippm.errors import UnknownNameError
from tests.unit.exploration.networks import build, count_parameters

ACCURACY = Objective("accuracy", of=count_parameters)


def space(**arguments):
    return Space(build, {"width": [8, 16]}, input="3,32,32", **arguments)


def test_objectives_as_people_write_them():
    assert [(o.name, o.goal) for o in objectives_of(["latency", "throughput", ACCURACY])] == [
        ("latency_ms", "min"),
        ("samples_per_s", "max"),
        ("accuracy", "max"),
    ]
    (energy,) = objectives_of({"energy_j": "max"})
    assert energy.goal == "max"
    assert "no accuracy" in weights_proxy().note


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], ExploreError),
        (["latency_ms", "latency"], ExploreError),
        ("latncy_ms", UnknownNameError),
        ({"latency_ms": "least"}, ExploreError),
        ([count_parameters], ExploreError),
        (3, TypeError),
    ],
)
def test_objectives_that_are_none(given, error):
    with pytest.raises(error):
        objectives_of(given)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "latency_ms", "of": count_parameters},
        {"name": "batch", "of": count_parameters},
        {"name": "accuracy", "of": lambda model: 1.0},
    ],
)
def test_functions_that_cannot_be_asked(arguments):
    with pytest.raises(ExploreError):
        Objective(**arguments)


def test_limits_and_what_they_are_held_against():
    given = {"latency_ms": 5, "memory_mb": "1g.5gb", "throughput": (100, None), "accuracy": (3, 4)}
    found = constraints_of(given, space(), (ACCURACY,))
    assert [(c.quantity, c.low, c.high) for c in found] == [
        ("latency_ms", -math.inf, 5.0),
        ("memory_bound_mb", -math.inf, 4864.0),
        ("samples_per_s", 100.0, math.inf),
        ("accuracy", 3.0, 4.0),
    ]
    latency = found[0]
    assert latency.violation({"latency_ms": 4.9}) == 0.0
    assert latency.violation({"latency_ms": 6.0}) == pytest.approx(0.2)
    assert found[2].violation({"samples_per_s": 75.0}) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"latncy": 5}, UnknownNameError, "Did you mean"),
        ({"latency_ms": "fast"}, ExploreError, "cannot be"),
        ({"latency_ms": (None, None)}, ExploreError, "no limit"),
        ({"latency_ms": True}, ExploreError, "True"),
        ({"latency_ms": math.nan}, ExploreError, "nan"),
        ({"memory_mb": "1g.6gb"}, UnknownNameError, "1g.6gb"),
    ],
)
def test_constraints_that_are_none(given, error, words):
    with pytest.raises(error, match=words):
        constraints_of(given, space(), ())


@pytest.mark.parametrize(
    "given",
    [
        {"latency_ms": (6, 5)},
        {"latency_ms": 0},
        {"memory_mb": -1},
        {"memory_mb": (5000, None), "memory_bound_mb": "1g.5gb"},
        {"latency_ms": (10, None), "throughput": (401, None)},  # batches up to 4
        {"latency_ms": 5, "throughput": 199},  # batches from 1
        {"latency_ms": (10, None), "power_w": (200, None), "energy_j": 1.9},
        {"latency_ms": 1, "power_w": 100, "energy_j": (0.2, None)},
    ],
)
def test_contradictions_are_told_before_anything_runs(given):
    with pytest.raises(ContradictionError, match="contradict"):
        constraints_of(given, space(batch=[1, 2, 4]), ())


@pytest.mark.parametrize(
    "given",
    [
        {"latency_ms": (10, None), "throughput": (399, None)},
        {"latency_ms": 5, "throughput": 201},
        {"latency_ms": (10, None), "power_w": (200, None), "energy_j": 2.1},
        {"latency_ms": (5, 5)},
    ],
)
def test_what_could_just_be_met_is_searched(given):
    assert constraints_of(given, space(batch=[1, 2, 4]), ())
