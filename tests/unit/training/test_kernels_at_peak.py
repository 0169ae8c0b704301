"""A family that ran otherwise in one table stands out from what it takes in others."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dippm.estimate.features.kernel_features import N_FEATURES
from training.hybrid.rows.examples import Examples
from training.studies.kernels_at_peak import BATCH, odd_families, slowdowns


def row(table: str, family: str, latency_ms: float, **other: object) -> SimpleNamespace:
    plain = {"mode": "eager", "batch": BATCH, "channels_last": False, "is_model": True, "mig": None}
    return SimpleNamespace(**{**plain, **other}, table=table, family=family, latency_ms=latency_ms)


def examples_of(rows: list[SimpleNamespace]) -> Examples:
    """Return examples of two kernels a row, one of them twice: 3 ms at peak, and 1 ms of steps."""
    kernels = 2 * len(rows)
    nothing = {name: np.zeros(0) for name in ("launches", "input_bytes")}
    flows = ("inward", "inward_start", "outward", "outward_start")
    return Examples(
        rows=rows,
        features=np.zeros((kernels, N_FEATURES), dtype=np.float32),
        log_roofline=np.zeros(kernels, dtype=np.float32),
        count=np.tile(np.float32([1.0, 2.0]), len(rows)),
        start=np.arange(0, kernels + 1, 2),
        serial_ms=np.ones(len(rows), dtype=np.float32),
        **nothing,
        **{name: np.zeros(0, dtype=np.int64) for name in flows},
    )


def test_the_slowdown_is_over_all_kernels_and_steps() -> None:
    small, slow = row("a", "f", 8.0, batch=BATCH - 1), row("a", "f", 8.0, channels_last=True)
    found = slowdowns(examples_of([row("a", "f", 6.0), small, slow]))
    assert list(found["table"]) == ["a", "a nhwc"]
    assert list(found["slowdown"]) == pytest.approx([1.5, 2.0])


def test_a_family_that_one_table_measured_otherwise_stands_out() -> None:
    rows = []
    for table, speed in (("a", 1.0), ("b", 0.8), ("c", 1.1)):
        for family, factor in (("f", 1.0), ("g", 0.8), ("h", 1.4), ("i", 1.3), ("j", 0.9)):
            odd = 0.5 if (table, family) == ("b", "g") else 1.0
            rows += [row(table, family, 4 * 1.3 * speed * factor * odd)] * 4
    (found,) = odd_families(slowdowns(examples_of(rows))).to_dict("records")
    assert (found["table"], found["family"], found["n"]) == ("b", "g", 4)
    assert found["factor"] == pytest.approx(0.5)
