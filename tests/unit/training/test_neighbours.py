"""The study of neighbours: its goals by the committed digest, and the law that is shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("scipy")

from dippm.estimate.models.neighbour_law import Load, NeighbourLaw, fitted
from training.studies import neighbours
from training.studies.neighbours import Cell, Rows, cells_of, digest, fit, held_out, report, within

RESULTS = Path(neighbours.__file__).parent / "results" / "neighbours.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def rows(document: dict[str, Any]) -> Rows:
    return Rows.of(cells_of(document))


def test_throughput_beside_neighbours_meets_its_goal_with_models_left_out(rows: Rows) -> None:
    off = held_out(rows)
    assert set(rows.processes.tolist()) == {2.0, 3.0, 4.0, 5.0}
    for start in ("predicted", "measured"):
        error = np.abs(np.expm1(-off[start]))
        assert np.median(error) <= 0.12
        assert max(np.median(error[rows.model == name]) for name in set(rows.model)) <= 0.12
    slow, whole = within(rows, off)
    assert slow >= 0.85
    assert whole >= 0.9


def test_nothing_that_ran_out_of_memory_is_called_feasible(document: dict[str, Any]) -> None:
    memory = document["memory"]
    failed = [row for row in memory if not row["ran"]]
    assert sum(row["points"] for row in failed) == 514
    assert not any(row["feasible"] for row in failed)
    ran = {row["feasible"]: row["points"] for row in memory if row["ran"]}
    assert ran[True] / sum(ran.values()) > 0.85


def test_the_shipped_law_is_that_of_all_rows(rows: Rows, document: dict[str, Any]) -> None:
    found, law = fit(rows), fitted()
    assert (found.work, found.copy, found.corner) == pytest.approx(
        (law.work, law.copy, law.corner), rel=0.02
    )
    memory = pd.DataFrame(
        [row for row in document["memory"] for _ in range(row["points"])],
        columns=["ran", "feasible"],
    )
    lines, _ = report(cells_of(document), 5, memory)
    written = RESULTS.with_suffix(".md").read_text(encoding="utf-8")
    assert lines[2] in written
    assert lines[-1] in written


def test_the_arrays_of_the_study_are_the_law(document: dict[str, Any]) -> None:
    law, cells = fitted(), cells_of(document)[:40]
    expected = [
        np.log(law.together([c.load] * k, "mps")[0].value / ms)
        for c in cells
        for k, ms in c.measured_ms.items()
        if k > 1
    ]
    assert Rows.of(cells).log_error(law, alone="predicted") == pytest.approx(expected)


def test_a_law_is_found_again() -> None:
    true = NeighbourLaw(0.8, 1.5, 9.0)
    cells = []
    for model in ("a", "b", "c"):
        for batch in range(1, 12):
            load = Load(2.0 + batch, 0.7 * batch, float(batch), 0.1 * batch * (model != "a"), 100)
            ms = {k: true.together([load] * k, "mps")[0].value for k in range(1, 6)}
            cells.append(Cell(model, "7g.80gb", batch, load, 0.1, ms))
    found = fit(Rows.of(cells))
    assert (found.work, found.copy) == pytest.approx((0.8, 1.5), rel=0.01)
    assert found.corner == pytest.approx(9.0, rel=0.1)
    assert np.abs(held_out(Rows.of(cells))["predicted"]).max() < 0.01
    assert cells_of(
        json.loads(json.dumps(digest(cells, pd.DataFrame(columns=["ran", "feasible"]))))
    )


def test_rows_in_which_processes_died_are_left_out() -> None:
    table = pd.DataFrame(
        {
            "model": "m", "mig_profile": "7g.80gb", "batch": 8,
            "processes_mps": [1, 2, 3], "latency_ms": [8.0, 15.0, 9.0],
        }
    )  # fmt: skip
    assert neighbours._some_died(table).tolist() == [False, False, True]
