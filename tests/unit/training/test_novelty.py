"""Held-out rows know how far they are from what trained in their fold, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.features.kernel_features import N_KINDS
from dippm.models.intervals import LEAST_NOVELTY
from dippm.models.novelty import MeasuredModels
from training.hybrid.novelty import novelties, thinned


def random_shares(count: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.full(N_KINDS, 0.2), count)


def test_what_is_left_out_is_near_what_is_kept() -> None:
    siblings = random_shares(20).repeat(50, axis=0)
    siblings = siblings + 0.001 * random_shares(1000)
    siblings /= siblings.sum(axis=1, keepdims=True)
    kept = MeasuredModels(thinned(siblings).astype(np.float32))
    assert len(kept.shares) <= 40
    assert max(kept.novelty(point) for point in siblings) < LEAST_NOVELTY


def test_the_farthest_are_kept_first_and_no_more_than_asked_for() -> None:
    twins = np.concatenate([np.tile(np.eye(N_KINDS)[0], (500, 1)), np.eye(N_KINDS)[:3]])
    kept = thinned(twins, most=3)
    assert kept.dtype == np.float16
    assert sorted(kept.argmax(axis=1)) == [0, 1, 2]
    assert len(thinned(random_shares(3000), most=100)) == 100


def test_rows_under_test_and_parts_of_models_are_no_measured_models() -> None:
    shares = np.eye(N_KINDS)[[0, 0, 1, 2]]
    is_model = np.array([True, True, True, False])

    def novelty(*train: int, test: int) -> float:
        (found,) = novelties(shares, is_model, np.array(train, dtype=np.int64), np.array([test]))
        return float(found)

    assert novelty(1, 2, 3, test=0) == 0
    assert novelty(2, 3, test=0) == 1
    assert novelty(0, 1, 2, test=3) == 1
    assert novelty(3, test=0) == 1


def test_both_sides_measure_alike() -> None:
    shares = random_shares(200)
    train, test = np.arange(150), np.arange(150, 200)
    found = novelties(shares, np.ones(200, dtype=bool), train, test)
    measured = MeasuredModels(thinned(shares[train]).astype(np.float32))
    assert found == pytest.approx([measured.novelty(shares[i]) for i in test])
