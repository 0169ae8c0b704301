"""A surrogate screens a space, the default predictor confirms what it liked best."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dippm.decide.exploration import ExploreError, Space, explore
from dippm.estimate.features import FEATURE_VERSION
from dippm.estimate.models.pmgns_network import Pmgns, PmgnsConfig
from dippm.estimate.pretrained import find, save_checkpoint
from dippm.model.graph import GRAPH_VERSION
from tests.unit.exploration.networks import build

pytest.importorskip("optuna")
RESIDUAL = {"coverage": 0.9, "low": -0.1, "high": 0.1, "upper_99": 0.2}
WIDTHS, BATCHES = [8, 16, 48], [1, 32]


@pytest.fixture(scope="module")
def surrogate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network: its order of designs is its own."""
    torch.manual_seed(0)
    config = PmgnsConfig(hidden=8)
    document = {
        "kind": "pmgns",
        "graph_version": GRAPH_VERSION,
        "feature_version": FEATURE_VERSION,
        "network": config.to_dict(),
        "conditions": {
            "devices": ["A100-40GB"],
            "precision": ["fp32"],
            "mode": ["eager"],
            "timer": ["wall"],
            "channels_last": [False],
            "autograd": [True],
        },
        "residuals": dict.fromkeys(config.targets, RESIDUAL),
        "seen": {"operators": ["conv2d"], "batch": [1, 64], "nodes": [1, 100]},
    }
    folder = tmp_path_factory.mktemp("checkpoints") / "small-surrogate" / "0.1.0"
    save_checkpoint(folder, Pmgns(config).state_dict(), document, {})
    return folder


def space(**settings: object) -> Space:
    asked = {"device": "A100-40GB", "autograd": True, **settings}
    return Space(build, {"width": WIDTHS, "depth": [1]}, input="3,32,32", batch=BATCHES, **asked)


def test_what_comes_back_are_answers_of_the_default_predictor(surrogate: Path) -> None:
    found = explore(space(), ["latency_ms"], surrogate=surrogate, confirm=2, workers=0)
    assert len(found.tried) == 2
    assert {tried.outcome.checkpoint.split()[0] for tried in found.tried} == {find().name}
    alone = explore(space(), ["latency_ms"], workers=0)
    by_design = {str(tried.design): tried.values for tried in alone.tried}
    assert all(tried.values == by_design[str(tried.design)] for tried in found.tried)
    assert found.notes()[0].startswith("6 designs were screened by small-surrogate 0.1.0")
    screened = explore(space(), ["latency_ms"], checkpoint=surrogate, workers=0)
    assert {str(t.design) for t in screened.front} <= {str(t.design) for t in found.tried}


def test_designs_that_narrowly_miss_are_confirmed_where_few_are_feasible(surrogate: Path) -> None:
    limits = {"latency_ms": (1e-9, 1000)}
    found = explore(space(), ["latency_ms"], limits, surrogate=surrogate, confirm=99, workers=0)
    assert len(found.tried) == len(WIDTHS) * len(BATCHES)


def test_a_space_that_it_was_not_trained_for_is_refused_before_anything_runs(
    surrogate: Path,
) -> None:
    with pytest.raises(ExploreError, match="cannot screen this space") as caught:
        explore(space(autograd=False), surrogate=surrogate, workers=0)
    assert "autograd" in caught.value.hint
    with pytest.raises(ExploreError, match="fp16"):
        explore(space(precision=["fp32", "fp16"]), surrogate=surrogate, workers=0)
    with pytest.raises(ExploreError, match="confirm is 0"):
        explore(space(), surrogate=surrogate, confirm=0, workers=0)
