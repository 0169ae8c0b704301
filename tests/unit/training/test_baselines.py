from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dataset.join.splits import by_architecture, random_split
from training.evaluation.baselines import (
    BASELINES,
    ClassMultipliers,
    FlopsProportional,
    NearestNeighbour,
    evaluate,
    held_out_predictions,
    with_rooflines,
)
from training.evaluation.metrics import errors

CLASSES = ("gemm", "norm", "absent")


@pytest.fixture
def table() -> pd.DataFrame:
    """Return 300 rows of 60 architectures whose latency is 1.25 · gemm + 3 · norm, 2 % noise."""
    rng = np.random.default_rng(0)
    architecture = np.repeat(np.arange(60), 5)
    macs = 10 ** rng.uniform(8, 10, 60)[architecture]
    elements = 10 ** rng.uniform(6, 8, 60)[architecture]
    batch = rng.choice([64, 128, 256], 300)
    times = np.c_[2 * macs * batch / 71e9, 4 * elements * batch / 936e6, np.zeros(300)]
    latency = times @ [1.25, 3, 1] * np.exp(rng.normal(0, 0.02, 300))
    rows = pd.DataFrame(
        {
            "row_id": [f"s/{i}" for i in range(300)],
            "source": "s",
            "gpu": "RTX-3090",
            "model": [f"m{a}" for a in architecture],
            "arch_id": architecture.astype(str),
            "family_id": (architecture % 6).astype(str),
            "batch": batch,
            "macs_per_sample": macs,
            "flops_per_sample": 2 * macs,
            "elements_per_sample": elements,
            "param_bytes": 4e7,
            "n_operators": 100,
            "n_compute": 50,
            "n_conv": 40,
            "n_dense": 10,
            "n_relu": 40,
            "latency_ms": latency,
        }
    )
    return with_rooflines(rows, times, CLASSES)


def test_class_multipliers_are_found_and_an_absent_class_keeps_its_roofline(
    table: pd.DataFrame,
) -> None:
    baseline = ClassMultipliers()
    baseline.fit(table)
    assert baseline.factors == pytest.approx([1.25, 3, 1], rel=0.02)


def test_every_baseline_answers_above_zero_on_every_test_row(table: pd.DataFrame) -> None:
    result = evaluate(table, by_architecture(table))
    assert list(result) == list(BASELINES)
    assert all(grouped.micro.n == len(table) for grouped in result.values())
    assert result["class multipliers"].micro.mape < result["FLOPs-proportional"].micro.mape


def test_one_scale_is_the_median_ratio(table: pd.DataFrame) -> None:
    baseline = FlopsProportional()
    doubled = table.assign(latency_ms=2e-9 * table["flops_per_sample"] * table["batch"])
    baseline.fit(doubled)
    assert errors(doubled["latency_ms"], baseline.predict(doubled)).mape < 1e-6


def test_the_nearest_neighbour_exposes_a_leak(table: pd.DataFrame) -> None:
    leaking, grouped = random_split(table), by_architecture(table)
    scores = []
    for split in (leaking, grouped):
        predicted, rows = held_out_predictions(NearestNeighbour, table, split)
        scores.append(errors(rows["latency_ms"], predicted).median_ape)
    assert scores[0] < scores[1] / 2
