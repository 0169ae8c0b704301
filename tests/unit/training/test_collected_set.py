"""The study of a set of ours: errors by phase, target and bound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dippm
from dippm.measure.kernels import TracedKernel
from training.studies.collected_set import (
    Answer,
    OperatorLine,
    lines,
    operator_lines,
    with_host_named,
)


def answer(phase: str, measured: dict[str, Any], predicted: float | None) -> Any:
    row = {"phase": phase, "queued_ms": 10.0, "energy_j": None, "power_w": float("nan"), **measured}
    targets = ("latency_ms", "energy_j", "memory_mb", "power_w")
    around = SimpleNamespace(low=0.9 * (predicted or 0.0), high=1.1 * (predicted or 0.0))
    prediction = SimpleNamespace(
        **dict.fromkeys(targets, predicted),
        intervals=dict.fromkeys(targets, around),
        provenance=SimpleNamespace(checkpoint="name 1.0.0"),
    )
    return Answer(row, prediction)  # type: ignore[arg-type]


def test_errors_are_those_of_what_was_measured_and_predicted() -> None:
    found = {
        (line.phase, line.target, line.part): line
        for line in lines(
            [
                answer("inference", {"latency_ms": 10.0, "memory_mb": 10.0, "kernel_ms": 9.0}, 8.0),
                answer("inference", {"latency_ms": 8.0, "memory_mb": 8.0, "kernel_ms": 3.0}, 8.0),
                answer("train", {"latency_ms": 4.0, "memory_mb": 0.0, "kernel_ms": 7.0}, 8.0),
                answer("train", {"latency_ms": 4.0, "memory_mb": 2.0, "kernel_ms": 7.0}, None),
            ]
        )
    }
    assert {key[1] for key in found} == {"latency_ms", "memory_mb"}
    assert ("train", "memory_mb", "all") not in found
    by_bound = [found["inference", "latency_ms", part] for part in ("GPU", "host")]
    assert [line.median_ratio for line in by_bound] == [0.8, 1.0]
    assert [line.inside for line in by_bound] == [0.0, 100.0]
    whole = found["inference", "latency_ms", "all"]
    assert (whole.n, whole.mape, whole.inside) == (2, 10.0, 50.0)
    assert whole.checkpoint == "name 1.0.0"
    assert found["train", "latency_ms", "both"].median_ape == 100.0


def test_points_that_the_host_limits_are_asked_again_with_its_time() -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))).eval()
    asked = {"device": "H100", "batch": 8, "precision": "fp32", "mode": "eager"}
    prediction = dippm.predict(net, input=(64,), **asked)
    row = {**asked, "phase": "inference", "channels_last": False, "queued_ms": None}
    row |= {"latency_ms": 2 * prediction.latency_ms, "kernel_ms": 0.01}
    [again] = with_host_named([Answer(row, prediction)])
    assert again.prediction.host is not None
    assert not again.prediction.host.assumed
    assert again.prediction.latency_ms == pytest.approx(row["latency_ms"], rel=1e-3)


def test_kernels_of_operators_stand_beside_what_was_predicted_of_them() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    prediction = dippm.predict(net.eval(), input=(64,), batch=8, device="H100")
    traced = [
        TracedKernel(
            "gemm", ("aten::linear", "aten::addmm"), (0, 1), "0", "forward", None, 0, 4000
        ),
        TracedKernel(
            "fill", ("aten::linear", "aten::addmm"), (0, 1), "0", "forward", None, 5, 1000
        ),
        TracedKernel("relu", ("aten::relu",), (2,), "1", "forward", None, 9, 2000),
        TracedKernel(
            "gemm", ("aten::linear", "aten::addmm"), (3, 4), "2", "forward", None, 12, 3000
        ),
    ]
    row = {"row_id": "a", "mode": "eager", "phase": "inference", "precision": "fp32"}
    row |= {"kernel_ms": 0.01, "queued_ms": 0.0101}
    compiled = Answer({**row, "mode": "compiled"}, prediction)
    launched = Answer({**row, "queued_ms": 1.0}, prediction)
    dense, relu = operator_lines(
        [Answer(row, prediction), Answer(row, prediction), compiled, launched], {"a": traced}
    )
    by_op = {cost.op: cost for cost in prediction.operators}
    assert relu == OperatorLine(
        "relu", "fp32", 0.004, round(2 * by_op["relu"].time_ms, 3), 2, 2 * by_op["relu"].kernels
    )
    assert (dense.op, dense.measured_ms, dense.measured_kernels) == ("dense", 0.016, 6)
    assert dense.predicted_kernels == 4
