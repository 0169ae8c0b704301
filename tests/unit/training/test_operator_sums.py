"""The parts of a measured time are those that made it."""

from __future__ import annotations

import pandas as pd
import pytest

from dippm.estimate.models.host import Host, latency_ms
from training.studies.operator_sums import parts_of, sums_of

HOST = Host(0.01, 1e9)


def row(model, mode, kernels_ms, launches, *, off=1.0, timer="wall", split="S1"):
    predicted_ms = latency_ms(kernels_ms, launches, 0.0, timer, HOST)
    host_share = 0.0 if timer == "kernel" else launches * HOST.launch_ms / predicted_ms
    return {
        "split": split, "kind": "model", "gpu": "A", "mig": None, "precision": "amp", "mode": mode,
        "layout": "nchw", "timer": timer, "architecture": model, "model": model, "batch": 8,
        "measured_ms": off * predicted_ms, "predicted_ms": predicted_ms, "host_share": host_share,
    }  # fmt: skip


@pytest.mark.parametrize("launches", [10, 300, 500, 700])
def test_kernels_host_and_rest_are_told_apart(launches):
    (found,) = parts_of(pd.DataFrame([row("m", "eager", 4.0, launches, off=1.1)])).to_dict(
        "records"
    )
    assert found["operators_ms"] == pytest.approx(4.0, rel=1e-6)
    assert found["fusion_ms"] == 0
    assert found["host_ms"] == pytest.approx(found["predicted_ms"] - 4.0)
    assert found["left_over_ms"] == pytest.approx(0.1 * found["predicted_ms"])


def test_fusion_is_what_compiling_saves():
    rows = [
        row("m", "eager", 4.0, 10),
        row("m", "compiled", 3.0, 10),
        row("n", "compiled", 9.0, 10),
    ]
    found = parts_of(pd.DataFrame(rows))
    (compiled,) = found[found["mode"] == "compiled"].to_dict("records")
    assert compiled["operators_ms"] == pytest.approx(4.0)
    assert compiled["fusion_ms"] == pytest.approx(1.0)


def test_what_cannot_be_told_is_left_out():
    rows = [
        row("a", "eager", 0.01, 1000),
        row("b", "eager", 4.0, 10, timer="wall+copy"),
        row("c", "eager", 4.0, 10, split="S0"),
    ]
    assert parts_of(pd.DataFrame(rows)).empty


def test_the_parts_add_up_to_what_was_measured():
    rows = []
    for i in range(40):
        rows.append(row(f"m{i}", "eager", 2.0 + i / 10, 100, off=1.05))
        rows.append(row(f"m{i}", "compiled", 1.5 + i / 10, 60, off=0.9))
    eager, compiled = sorted(sums_of(pd.DataFrame(rows)), key=lambda s: s.mode, reverse=True)
    assert (eager.n, compiled.n) == (40, 40)
    assert eager.fusion == 0 < compiled.fusion
    assert eager.left_over == pytest.approx(100 * (1 - 1 / 1.05))
    assert compiled.left_over == pytest.approx(100 * (1 - 1 / 0.9))
    assert eager.whole_off == pytest.approx(100 * (1 - 1 / 1.05))
    assert compiled.operators_off > compiled.whole_off
    whole = parts_of(pd.DataFrame(rows))
    total = whole["operators_ms"] - whole["fusion_ms"] + whole["host_ms"] + whole["left_over_ms"]
    assert total.tolist() == pytest.approx(whole["measured_ms"].tolist())
