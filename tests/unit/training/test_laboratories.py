"""Errors of laboratories held out: one line for each on a GPU, without what the host decides."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd

from dataset.join.latency_splits import laboratory_out
from training.evaluation.held_out import HeldOut
from training.hybrid.judge.report import QUESTION_OF_L, laboratory_lines
from training.studies.laboratories import COLUMNS, write

ROWS = 40
EXAMPLES = SimpleNamespace(
    rows=[
        SimpleNamespace(
            source="one" if i < 20 else "other",
            device=SimpleNamespace(name="T4" if i % 2 else "A40"),
            kind="model" if i % 4 < 2 else "operator",
            is_model=i % 4 < 2,
            table="t",
            precision="fp16",
            mode="eager",
        )
        for i in range(ROWS)
    ]
)
HELD = HeldOut(
    "made up",
    "L",
    pd.DataFrame(
        {
            "position": np.arange(ROWS),
            "arch_id": [f"model {i}" for i in range(ROWS)],
            "family_id": "made up",
            "fold": ["one" if i < 20 else "other" for i in range(ROWS)],
            "latency_ms": 1.0,
            "predicted latency_ms": [1.1 if i < 20 else 0.5 for i in range(ROWS)],
            "host_share": [0.9 if i == 0 else 0.1 for i in range(ROWS)],
        }
    ),
    0.0,
)


def lines(half: float) -> list[dict]:
    return laboratory_lines(EXAMPLES, HELD, lambda rows: np.full(len(rows), half))


def test_a_laboratory_on_a_gpu_is_a_line_for_each_kind_of_work() -> None:
    found = {(line["data"].split()[0], line["gpu"], line["question"]): line for line in lines(0.2)}
    assert len(found) == 7  # the models of "one" on the A40 are four, where the host decides one
    line = found["one", "T4", QUESTION_OF_L]
    assert line["data"] == "one (whole models, fp16, eager)"
    assert line["n"] == 5
    assert round(line["median_ape"], 6) == 10.0
    assert line["coverage"] == 100.0
    assert found["other", "T4", None]["coverage"] == 0.0


def test_laboratories_that_were_not_asked_again_keep_their_lines(tmp_path) -> None:
    every = [{"laboratory": line["data"].split()[0], **line} for line in lines(0.2)]
    write(tmp_path, [line for line in every if line["laboratory"] == "one"], "law 1", 10)
    write(tmp_path, [line for line in every if line["laboratory"] == "other"], "law 1", 10)
    kept = json.loads((tmp_path / "laboratories.json").read_text(encoding="utf-8"))["lines"]
    assert {line["laboratory"] for line in kept} == {"one", "other"}
    text = (tmp_path / "laboratories.md").read_text(encoding="utf-8")
    assert text.count("\n|") == 2 + len(every)
    assert set(COLUMNS) <= set(every[0])


def test_a_laboratory_is_held_out_where_another_one_runs_as_users_do() -> None:
    measured = [
        ("one", "T4"),
        ("one", "L4"),
        ("other", "T4"),
        ("sd_webui", "L4"),
        ("sd_webui", "T4"),
        ("one", "A40"),
    ]
    table = pd.DataFrame(
        {
            "row_id": [f"row {i}" for i in range(len(measured))],
            "source": [source for source, _ in measured],
            "gpu": [gpu for _, gpu in measured],
            "arch_id": "a",
            "family_id": "f",
            "model": "m",
        }
    )
    folds = {fold.name: fold for fold in laboratory_out(table).folds}
    assert set(folds) == {"one", "other"}
    assert folds["one"].test == ("row 0",)
    assert set(folds["one"].left_out) == {"row 1", "row 5"}
    assert folds["other"].test == ("row 2",)
