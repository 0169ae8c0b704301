"""Held-out rows know how far they are from what trained in their fold, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.estimate.features.kernel_features import N_KINDS
from dippm.estimate.models.intervals import LEAST_NOVELTY
from dippm.estimate.models.novelty import MeasuredModels, with_biases_as_norms
from training.hybrid.fit.novelty import measured_models, measured_tensors, novelties, thinned


def random_shares(count: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.full(N_KINDS, 0.2), count)


def test_what_is_left_out_is_near_what_is_kept() -> None:
    siblings = random_shares(20).repeat(50, axis=0)
    siblings = siblings + 0.001 * random_shares(1000)
    siblings /= siblings.sum(axis=1, keepdims=True)
    kept = MeasuredModels(thinned(siblings).astype(np.float32))
    assert len(kept.shares) <= 40
    assert max(kept.novelty(point).on_any for point in siblings) < LEAST_NOVELTY


def test_the_farthest_are_kept_first_and_no_more_than_asked_for() -> None:
    twins = np.concatenate([np.tile(np.eye(N_KINDS)[0], (500, 1)), np.eye(N_KINDS)[:3]])
    kept = thinned(twins, most=3)
    assert kept.dtype == np.float16
    assert sorted(kept.argmax(axis=1)) == [0, 1, 2]
    assert len(thinned(random_shares(3000), most=100)) == 100


def test_rows_under_test_are_no_measured_models_and_gpus_are_told_apart():
    shares = np.eye(N_KINDS)[[0, 0, 1, 2]]
    gpus = np.array(["A", "A", "B", "B"])

    def novelty(*train: int, test: int) -> list[float]:
        (found,) = novelties(shares, gpus, np.array(train, dtype=np.int64), np.array([test]))
        return list(found)

    assert novelty(1, 2, test=0) == [0, 0]
    assert novelty(2, 3, test=0) == [1, 1]
    assert novelty(0, 3, test=2) == [1, 1]
    assert novelty(2, test=0) == [1, 1]
    assert novelty(test=0) == [1, 1]
    shares[2] = shares[0]
    assert novelty(2, 3, test=0) == [0, 1]


def test_both_sides_measure_alike() -> None:
    shares = with_biases_as_norms(random_shares(200))
    gpus = np.where(np.arange(200) % 3 == 0, "A", "B")
    train, test = np.arange(150), np.arange(150, 200)
    found = novelties(shares, gpus, train, test)
    measured = measured_models(shares[train], gpus[train])
    tensors = {name: array.numpy() for name, array in measured_tensors(measured).items()}
    read = MeasuredModels.from_tensors(tensors, list(measured.on_gpus))
    known = [read.novelty(shares[i], str(gpus[i])) for i in test]
    assert found == pytest.approx(np.array(known), abs=1e-6)
    assert (found[:, 1] >= found[:, 0]).all()
    assert (found[:, 1] > found[:, 0]).any()
