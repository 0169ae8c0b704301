"""What errors share is found again where it is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dippm.decide.choice import probability
from training.evaluation.held_out import half_width
from training.studies.shared_errors import Z90, findings

SD = 0.1


def rows(split, gpu, z, measured_ms, mig=None):
    count = len(z)
    return pd.DataFrame(
        {
            "split": split, "kind": "model", "gpu": gpu, "mig": mig, "precision": "amp",
            "mode": "eager", "layout": "nchw", "timer": "wall", "batch": 32,
            "model": [f"m{i}" for i in range(count)],
            "architecture": [f"m{i // 2}" for i in range(count)],
            "measured_ms": measured_ms, "predicted_ms": measured_ms * np.exp(SD * z),
            half_width(0.9): Z90 * SD,
        }
    )  # fmt: skip


def correlated(random, count, *rhos):
    common = random.standard_normal(count)
    return [np.sqrt(r) * common + np.sqrt(1 - r) * random.standard_normal(count) for r in rhos]


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_a_known_correlation_is_found_and_covers(monkeypatch, rho):
    monkeypatch.setattr(probability, "SHARED", rho)
    monkeypatch.setattr(probability, "SHARED_BOARD", rho)
    random = np.random.default_rng(1)
    time_ms, ratio = np.exp(random.standard_normal((2, 3000)))
    a, b = correlated(random, 3000, rho, rho)
    table = pd.concat([rows("S1", "A", a, time_ms), rows("S1", "B", b, ratio * time_ms)])
    (found,) = findings(table)
    assert (found.kind, found.places, found.n, found.architectures) == (
        "measured",
        "A B",
        3000,
        1500,
    )
    assert found.shared == pytest.approx(rho, abs=0.05)
    assert found.low < found.shared < found.high
    assert found.covered == pytest.approx(0.9, abs=0.02)
    assert found.sure == pytest.approx(found.right, abs=0.03)
    assert found.apart >= found.covered - 0.01
    if rho:
        assert found.apart > 0.95


def test_every_kind_of_pair_is_told_apart():
    random = np.random.default_rng(2)
    time_ms = np.exp(random.standard_normal(400))
    parts = []
    for split in ("S1", "S3a"):
        a, b, c = correlated(random, 400, 0.5, 0.5, 0.5)
        parts += [rows(split, "A", a, time_ms), rows(split, "B", b, time_ms)]
        if split == "S1":
            parts += [rows(split, "A", c, time_ms, "1g"), rows(split, "A", c, 2 * time_ms, "2g")]
    found = {(one.kind, one.places): one for one in findings(pd.concat(parts))}
    assert set(found) == {
        ("measured", "A B"), ("new", "A B"), ("one new", "A B"), ("slices", "A")
    }  # fmt: skip
    assert found["slices", "A"].shared == pytest.approx(1, abs=1e-6)
    assert found["one new", "A B"].n == 800
    assert found["one new", "A B"].shared == pytest.approx(0, abs=0.1)
