"""Errors of two versions stand beside each other, also where one of them has no such row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from training.evaluation.version_regression import regression_table


def _row(split: str, **errors: float) -> dict[str, object]:
    return {"gpu": "A100", "target": "latency_ms", "data": "table", "split": split, **errors}


def test_rows_are_joined_and_none_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "0.1.0"
    folder.mkdir()
    earlier = [
        _row("S0", n=10, median_ape=4.123, mape=6.0),
        _row("gone", n=3, median_ape=1.0, mape=2.0),
    ]
    (folder / "metrics.json").write_text(json.dumps({"summary": earlier}))
    now = [
        _row("S0", n=11, median_ape=5.0, mape=5.5, p90=9.0),
        _row("new", n=1, median_ape=3.0, mape=3.0),
    ]
    ((title, rows),) = regression_table(folder, now).items()
    assert title == "errors since 0.1.0, percent"
    common, new, gone = rows
    assert common == _row("S0") | {
        "n before": 10,
        "n now": 11,
        "median_ape before": 4.12,
        "median_ape now": 5.0,
        "mape before": 6.0,
        "mape now": 5.5,
    }
    assert (new["split"], new["mape before"], new["mape now"]) == ("new", None, 3.0)
    assert (gone["split"], gone["mape before"], gone["mape now"]) == ("gone", 2.0, None)


def test_a_folder_without_metrics_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        regression_table(tmp_path, [])
