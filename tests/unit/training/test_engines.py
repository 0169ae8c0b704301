"""The study of engines: twins and the fit of offsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("scipy")

from dippm.devices import find
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.models.engine_law import GROUPS
from training.studies.engines import Parts, Row, fit, held_out, number, predicted_ms, read_rows

RECORD = {
    "section": "VanillaNet",
    "model": "VanillaNet5",
    "timm_guess": np.nan,
    "input_px": 224.0,
    "qps": 600.0,
    "latency_ms": 1.67,
    "params": "22.33M",
    "flops": "8.46G",
}


def of_kernels(family: str, layers: int, factor: float) -> Row:
    view = DeviceView.of(find("T4"))
    kernels = [Kernel.stream(0, "pool", 1e5 * (1 + i), 2) for i in range(layers)]
    parts = Parts.of(kernels, view)
    true = np.stack([np.full(len(GROUPS), x) for x in (2.0, factor, 0.004)])
    row = Row(family, f"{family}{layers}", 1.0, {"engine": parts})
    return Row(row.family, row.model, predicted_ms(row, "engine", true), row.parts)


def test_offsets_of_one_family_predict_another() -> None:
    rows = [of_kernels(f, n, 3.0) for f in ("a", "b", "c") for n in (2, 10, 40)]
    assert np.abs(held_out(rows, "engine")).max() < 0.03


def test_offsets_are_never_below_the_roofline() -> None:
    rows = [of_kernels(f, n, 0.3) for f in ("a", "b") for n in (2, 10)]
    assert (fit(rows, "engine")[:2] >= 1.0).all()


def test_a_model_without_a_twin_is_left_out_with_its_reason(tmp_path: Path) -> None:
    named = {**RECORD, "timm_guess": "resnet50"}
    rows, left_out = read_rows(pd.DataFrame([RECORD, named]), tmp_path)
    assert not rows
    assert dict(left_out) == {"no twin in timm": 1, "no graph of the twin": 1}


@pytest.mark.parametrize(("text", "value"), [("17.61G", 17.61e9), ("266M", 266e6), ("12", 12.0)])
def test_sizes_as_the_table_writes_them(text: str, value: float) -> None:
    assert number(text) == pytest.approx(value)
