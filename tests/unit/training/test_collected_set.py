"""The study of a set of ours: errors by phase, target and bound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from training.studies.collected_set import Answer, lines


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
