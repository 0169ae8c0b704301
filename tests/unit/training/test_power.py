"""The fit finds a power law that made the samples, and says its errors on what it did not see."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from dataset.join.raw_graphs import BATCH
from dataset.measured.nodes import GraphBuilder
from dippm.devices import find
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.power import SHARES, PowerModel, work_ms
from dippm.model.graph.model_graph import ModelGraph
from training.hybrid.fit.power import (
    SPLITS,
    energy_lines,
    evaluate,
    fit_power,
    log_spread,
    predictions,
)
from training.hybrid.rows.power_samples import LEAST_BUSY, PowerSample, _at_full_clocks, _busy

TRUE = PowerModel(0.25, (1.2, 0.7, 1.5, 0.6), 5.0, 0.0, 0.25, 0.8)


@pytest.fixture(scope="module")
def samples() -> list[PowerSample]:
    generator = np.random.default_rng(0)
    made = []
    for source, gpu in (("a", "A100"), ("a", "H200"), ("b", "T4"), ("c", "RTX-3090")):
        for i in range(40):
            work = tuple(generator.uniform(0, 0.6, len(SHARES)).tolist())
            busy = generator.uniform(0.1, 1.0)
            power = TRUE.power_w(find(gpu), busy, work)
            row = f"{source}{gpu}{i}"
            made.append(PowerSample(source, "toys", f"g{i % 8}", find(gpu), busy, work, power, row))
    return made


def test_the_fit_recovers_the_law(samples) -> None:
    found = predictions(fit_power(samples), samples) / [s.power_w for s in samples]
    assert np.abs(found - 1).mean() < 0.03
    assert found == pytest.approx(np.ones(len(samples)), abs=0.1)


def test_errors_are_stated_of_what_was_held_out_beside_the_baseline(samples) -> None:
    latency = pd.DataFrame(
        {"row_id": [samples[0].row_id], "latency_ms": [1.0], "predicted latency_ms": [1.1]}
    )
    model, lines = evaluate(samples)
    assert {line["split"] for line in lines} == set(SPLITS)
    for line in lines:
        assert line["mape"] < 10
        assert line["coverage"] > 0
        assert line["constant_share_of_limit_mape"] > 0
    (energy,) = energy_lines(samples, latency, "L laboratory held out")
    assert energy["target"] == "energy_j"
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


def test_the_fit_finds_what_boards_draw_while_they_wait(samples) -> None:
    found = fit_power(samples)
    assert found.waiting_share == pytest.approx(TRUE.waiting_share, abs=0.03)
    assert found.silicon_exponent == pytest.approx(TRUE.silicon_exponent, abs=0.3)


def test_a_long_table_weighs_no_more_than_a_short_one(samples) -> None:
    """A laboratory of ten times as many rows that reads 30 % high does not bend the law alone."""
    high = [replace(s, power_w=1.3 * s.power_w) for s in samples if s.source == "a"] * 10
    found = [fit_power([*(s for s in samples if s.source != "a"), *high[:n]]) for n in (80, 800)]
    both = np.array([predictions(model, samples) for model in found])
    assert both[1] == pytest.approx(both[0], rel=1e-3)


def test_the_interval_covers_nine_in_ten_of_every_kind_of_work_alike(samples) -> None:
    """A thousand exact rows do not narrow what ten others need."""
    labels = np.array([s.power_w for s in samples])
    wrong = np.array([s.source == "b" for s in samples])
    predicted = np.where(wrong, 1.2, 1.01) * labels
    spread = log_spread(samples, [predicted])
    assert spread == pytest.approx(np.log(1.2) / 1.645)
    crowd = [s for s in samples if s.source != "b"] * 20 + [s for s in samples if s.source == "b"]
    doubled = np.array([s.power_w * (1.2 if s.source == "b" else 1.01) for s in crowd])
    assert log_spread(crowd, [doubled]) == pytest.approx(spread)


def test_time_that_grows_with_the_number_of_kernels_is_waiting() -> None:
    """What a step would take without its host is told from times; powers are not asked."""
    device, batch, wait_ms = find("Quadro-RTX-6000"), 4096, 0.1
    steps, busy = [], []
    for width, depth in product((512, 1024, 2048), (4, 12)):
        table = KernelTable.of_training(perceptron(width, depth), "fp32")
        _, products, _, moved = work_ms(table, batch, DeviceView.of(device)).sum(axis=1)
        busy_ms = 1.5 * products + 1.2 * moved
        latency_ms = busy_ms + wait_ms * table.launches
        steps.append(({"latency_ms": latency_ms, "batch": batch, "gpu": device.name}, table))
        busy.append(max(LEAST_BUSY, busy_ms / latency_ms))
    assert min(busy) < 0.6 < 0.9 < max(busy)
    assert _busy(steps) == pytest.approx(busy, abs=0.01)


def perceptron(width: int, depth: int) -> ModelGraph:
    b = GraphBuilder(batch=BATCH)
    x = b.input((BATCH, width))
    for _ in range(depth):
        attributes = {"in_features": width, "out_features": width}
        x = b.add("dense", [x], (BATCH, width), attributes=attributes, weights=width * width)
        x = b.add("relu", [x], (BATCH, width))
    return b.graph(batch_is_symbolic=True)
