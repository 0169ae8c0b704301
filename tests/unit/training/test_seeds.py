"""Errors over seeds are the mean of each seed's own, and their files say all of it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from training.evaluation.held_out import HeldOut
from training.hybrid.judge.report_strata import Stratum
from training.studies.seeds import MEMBERS, seed_lines, write

MEASURED_MS = np.array([1.0, 2.0, 4.0, 8.0])
EVERY = Stratum("a table", "A", "amp", lambda row: True)
NONE = Stratum("a table", "B", "amp", lambda row: False)


def held(factors):
    rows = pd.DataFrame(
        {
            "position": range(4),
            "arch_id": ["a", "a", "b", "b"],
            "family_id": ["f", "f", "f", "g"],
            "latency_ms": MEASURED_MS,
            "predicted latency_ms": MEASURED_MS * np.array(factors),
        }
    )
    return HeldOut("mean", "S1", rows, 0.0)


@pytest.fixture
def lines():
    examples = SimpleNamespace(rows=[None] * 4)
    held_out_sets = {
        (0,): held([1.1, 1.1, 0.9, 0.7]),
        (1,): held([1.3, 1.3, 1.3, 1.1]),
        MEMBERS: held([1.2, 1.2, 1.1, 0.9]),
    }
    return seed_lines(examples, held_out_sets, (EVERY, NONE))


def test_a_view_has_one_line_with_the_mean_and_range_over_seeds(lines):
    (line,) = lines
    assert line["mape"] == {"mean": 20.0, "least": 15.0, "largest": 25.0}
    assert line["median_ape"] == {"mean": 20.0, "least": 10.0, "largest": 30.0}
    assert line["macro_mape"] == {"mean": 20.0, "least": 20.0, "largest": 20.0}
    assert (line["n"], line["architectures"], line["seeds"]) == (4, 2, [0, 1])


def test_the_interval_takes_all_seeds_of_an_architecture_together(lines):
    low, high = lines[0]["mape_ci95"]
    assert (low, high) == pytest.approx((20.0, 20.0), abs=0.01)


def test_the_mean_of_as_many_seeds_as_ship_stands_beside_single_seeds(lines):
    assert lines[0]["members"] == {"mape": 15.0, "median_ape": 15.0, "macro_mape": 13.33}


def test_files_hold_the_lines_and_the_command(lines, tmp_path):
    write(tmp_path, "hybrid-gpu 9", lines, steps=7)
    document = json.loads((tmp_path / "seeds.json").read_text())
    assert document["lines"] == lines
    assert document["checkpoint"] == "hybrid-gpu 9"
    assert document["command"].endswith("--steps 7")
    assert (
        "| S1 architectures held out | A | a table (amp) | 4 | 2 | 20.00 (15.00 to 25.00) |"
        in (tmp_path / "seeds.md").read_text()
    )


def test_a_split_takes_the_place_of_its_own_lines_alone(lines, tmp_path):
    random = [{**line, "split": "S0 random"} for line in lines]
    again = [{**line, "n": 5} for line in lines]
    for found in (lines, random, again):
        write(tmp_path, "hybrid-gpu 9", found)
    assert json.loads((tmp_path / "seeds.json").read_text())["lines"] == [*random, *again]


def test_lines_of_another_checkpoint_are_dropped(lines, tmp_path):
    write(tmp_path, "hybrid-gpu 9", lines)
    random = [{**line, "split": "S0 random"} for line in lines]
    write(tmp_path, "hybrid-gpu 10", random)
    assert json.loads((tmp_path / "seeds.json").read_text())["lines"] == random
