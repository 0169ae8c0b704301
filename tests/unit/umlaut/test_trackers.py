"""Trackers take lists, arrays and tensors, and keep plain values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dippm.umlaut import (
    Benchmark,
    BenchmarkSupervisor,
    ConfusionMatrixTracker,
    HyperparameterTracker,
    LossTracker,
    TimedTTATracker,
    TTATracker,
)

MAKERS = [list, tuple, np.array, torch.tensor]


@pytest.mark.parametrize("make", MAKERS)
def test_confusion_matrices(benchmark: Benchmark, make: Any) -> None:
    matrix = make([[5, 1], [0, 4]])
    ConfusionMatrixTracker(benchmark).track(matrix, ["cat", "dog"], "validation")
    (row,) = benchmark.rows()
    assert row.data == {"matrix": [[5, 1], [0, 4]], "labels": ["cat", "dog"]}
    assert (row.measure_type, row.description) == ("confusion_matrix", "validation")


@pytest.mark.parametrize("make", MAKERS)
def test_losses_and_accuracies(benchmark: Benchmark, make: Any) -> None:
    LossTracker(benchmark).track(make([1.0, 0.5]), "training")
    TTATracker(benchmark).track(make([0.25, 0.75]), "validation")
    loss, accuracy = benchmark.rows()
    assert (loss.data, accuracy.data) == ([1.0, 0.5], [0.25, 0.75])
    assert (loss.unit, accuracy.unit) == ("loss", "accuracy")


def test_a_tensor_with_a_gradient_and_numbers_that_are_none(benchmark: Benchmark) -> None:
    losses = [torch.tensor(0.5, requires_grad=True), np.float32(0.25), float("nan")]
    LossTracker(benchmark).track(losses)
    assert benchmark.rows()[0].data == [0.5, 0.25, None]


def test_hyperparameters(benchmark: Benchmark) -> None:
    names = ["batch", "rate"]
    with HyperparameterTracker(benchmark, "grid", names, "loss", low_means_good=True) as tracker:
        tracker.track({"batch": 32, "rate": np.float64(0.1), "loss": 2.0, "more": 1})
        tracker.track({"batch": 64, "rate": 0.2, "loss": torch.tensor(1.0)})
        with pytest.raises(ValueError, match="loss"):
            tracker.track({"batch": 1, "rate": 0.1})
    tracker.close()
    (row,) = benchmark.rows()
    assert row.data == {
        "hyperparameters": names,
        "target": "loss",
        "low_means_good": True,
        "columns": {"batch": [32, 64], "rate": [0.1, 0.2], "loss": [2.0, 1.0]},
    }


def test_the_time_to_an_accuracy(benchmark: Benchmark) -> None:
    tracker = TimedTTATracker(benchmark, target_acc=0.5)
    for accuracy in (0.25, torch.tensor([0.5]), 0.75):
        tracker.track(accuracy)
    below, reached, above = [row.data for row in benchmark.rows()]
    assert below["seconds_to_target"] is None
    assert reached["seconds_to_target"] == reached["seconds"] == above["seconds_to_target"]
    assert tracker.seconds == reached["seconds"]


def test_a_value_belongs_to_the_call_that_told_it(benchmark: Benchmark) -> None:
    @BenchmarkSupervisor([], benchmark)
    def train() -> None:
        LossTracker(benchmark).track([1.0], "loss")
        benchmark.log("size", "entries", 7, unit="rows")

    train()
    values = [row for row in benchmark.rows() if row.measure_type != "call"]
    assert {row.method_name for row in values} == {"train"}
    assert [row.value for row in values if row.description == "size"] == [7.0]
