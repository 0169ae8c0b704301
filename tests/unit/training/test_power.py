"""The fit finds a power law that made the samples, and says its errors on what it did not see."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dippm.devices import find
from dippm.models.power import SHARES, PowerModel
from training.hybrid.fit.power import SPLITS, evaluate, fit_power, predictions
from training.hybrid.rows.power_samples import PowerSample, _at_full_clocks

TRUE = PowerModel(0.25, (1.2, 0.7, 1.5, 0.6), 5.0, 0.0)


@pytest.fixture(scope="module")
def samples() -> list[PowerSample]:
    generator = np.random.default_rng(0)
    made = []
    for source, gpu in (("a", "A100"), ("a", "H200"), ("b", "T4"), ("c", "RTX-3090")):
        for i in range(40):
            work = tuple(generator.uniform(0, 0.6, len(SHARES)).tolist())
            power = TRUE.power_w(find(gpu), 0.9, work)
            row = f"{source}{gpu}{i}"
            made.append(PowerSample(source, "toys", f"g{i % 8}", find(gpu), 0.9, work, power, row))
    return made


def test_the_fit_recovers_the_law(samples) -> None:
    found = predictions(fit_power(samples), samples) / [s.power_w for s in samples]
    assert np.abs(found - 1).mean() < 0.03
    assert found == pytest.approx(np.ones(len(samples)), abs=0.1)


def test_errors_are_stated_of_what_was_held_out_beside_the_baseline(samples) -> None:
    latency = pd.DataFrame(
        {"row_id": [samples[0].row_id], "latency_ms": [1.0], "predicted latency_ms": [1.1]}
    )
    model, lines = evaluate(samples, latency)
    power = [line for line in lines if line["target"] == "power_w"]
    assert {line["split"] for line in power} == set(SPLITS)
    for line in power:
        assert line["mape"] < 10
        assert line["constant_share_of_limit_mape"] > 0
    (energy,) = (line for line in lines if line["target"] == "energy_j")
    assert (energy["n"], energy["gpu"]) == (1, "A100-40GB")
    assert 0 < energy["mape"] < 15
    assert 0 < model.log_error < 0.1


def test_runs_on_hot_boards_do_not_teach() -> None:
    macs = np.arange(1, 100) * 1e9
    hot = np.arange(99) % 2 == 0
    pace = np.where(hot, 2e-9, 1e-9)
    power_w = np.where(hot, 160.0, 240.0)
    like = pd.DataFrame({"macs": macs, "energy_run_ms": pace * macs, "power_w": power_w})
    assert _at_full_clocks(like, 50e9) == pytest.approx({"power_w": 240.0, "run_ms": 50.0})
