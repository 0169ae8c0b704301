"""What the shipped checkpoint reaches is read off its own metrics."""

from __future__ import annotations

import json

from dippm.estimate.pretrained import find
from dippm.estimate.pretrained.store import read_metrics
from training.hybrid.judge.fit_gate import TABLE
from training.hybrid.judge.goals import GOALS, gate_row, goal_rows


def line(gpu: str, error: float, **other: object) -> dict[str, object]:
    return {
        "gpu": gpu,
        "target": "latency_ms",
        "split": "L laboratory held out",
        "data": "hwgpt (whole models, amp, eager)",
        "n": 10,
        "median_ape": error,
        "coverage": 90.0,
        **other,
    }


def test_a_goal_holds_for_the_typical_gpu_and_for_the_worst() -> None:
    good = [line("A40", 4.0), line("A40", 8.0, n=30), line("T4", 9.0)]
    row = goal_rows(good)[0]
    assert row["seen"] == "median 8.0, worst 9.0 (T4), 2 GPUs"
    assert (row["reached"], row["n"], row["coverage"]) == ("yes", "50", "90–90")
    assert goal_rows([*good, line("L4", 15.5)])[0]["reached"] == "no"
    operators = line("L4", 40.0, data="vidur (single operators, fp16, eager)")
    assert goal_rows([*good, operators])[0] == row


def test_what_was_not_measured_is_said_to_be_so() -> None:
    assert {row["seen"] for row in goal_rows([])} == {"not measured"}


def test_cells_of_few_rows_are_no_part_of_the_gate() -> None:
    cells = [{"n": 20, "log_error": 0.05}, {"n": 40, "log_error": -0.2}, {"n": 3, "log_error": 2}]
    assert gate_row(cells)["seen"] == "median 0.125, worst 0.20"
    assert gate_row(cells)["reached"] == "1 of 2 beyond"


def test_the_shipped_checkpoint_answers_most_goals() -> None:
    rows = goal_rows(read_metrics(find().path)["summary"])
    assert len(rows) == len(GOALS)
    assert sum(row["seen"] != "not measured" for row in rows) >= 5
    assert gate_row(json.loads(TABLE.read_text(encoding="utf-8"))["cells"])["n"].endswith("cells")
