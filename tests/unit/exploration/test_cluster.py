"""The same call on a Ray cluster: a local one of several processes."""

from __future__ import annotations

import functools

import pytest

from dippm.decide.exploration import Space, explore
from tests.unit.exploration.networks import build, build_and_die_once

pytest.importorskip("optuna")


@pytest.mark.nightly(part="services")
def test_a_local_cluster_gives_the_same_and_survives_the_loss_of_a_worker(tmp_path):
    pytest.importorskip("ray")
    flag = tmp_path / "flag"
    flag.touch()
    make = functools.partial(build_and_die_once, str(flag))
    axes = {"width": [8, 16, 32], "depth": [1, 2]}
    goals = ["latency_ms", "memory_mb"]
    storage = f"sqlite:///{tmp_path / 'search.db'}"
    space = Space(make, axes, input="3,32,32", batch=[1, 8])
    found = explore(space, goals, storage=storage, workers=2, cluster="local")
    assert not flag.exists()
    here = explore(Space(build, axes, input="3,32,32", batch=[1, 8]), goals, workers=2)
    assert [t.outcome.state for t in found.tried] == ["ok"] * 12
    assert [dict(t.values) for t in found.tried] == [dict(t.values) for t in here.tried]
