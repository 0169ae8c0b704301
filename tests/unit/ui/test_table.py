"""The table of runs: columns, sorting, groups, a screenful at a time."""

from __future__ import annotations

import time

from dippm.show.ui.table import default_columns, group_key, known_columns, table
from tests.unit.ui.runs_in_memory import listed

RUNS = [
    listed("a", group="w", params={"lr": "0.1", "seed": "1"}, metrics={"loss": 0.3}, after_s=3),
    listed("b", group="w", params={"lr": "0.01", "seed": "1"}, metrics={"loss": 0.1}, after_s=2),
    listed("c", experiment="text", params={"lr": "auto"}, tags={"team": "x"}, after_s=1),
]


def names(found):
    return [row.label for row in found.rows]


def test_the_newest_run_is_first():
    assert names(table(RUNS[::-1])) == ["a", "b", "c"]


def test_numbers_are_sorted_as_numbers_and_who_has_none_comes_last_either_way():
    assert names(table(RUNS, sort="metric: loss")) == ["b", "a", "c"]
    assert names(table(RUNS, sort="-metric: loss")) == ["a", "b", "c"]
    assert names(table(RUNS, sort="param: lr")) == ["b", "a", "c"]
    assert names(table(RUNS, sort="-name")) == ["c", "b", "a"]


def test_columns_are_chosen_and_an_empty_cell_is_empty():
    found = table(RUNS, ["param: lr", "metric: loss", "tag: team", "workload", "nonsense"])
    assert found.rows[0].cells == ("0.1", "0.3000", "", "w", "")
    assert found.rows[2].cells == ("auto", "", "x", "", "")
    assert found.numeric == (True, True, False, False, False)


def test_somebody_who_chose_none_sees_what_differs():
    assert default_columns(RUNS)[-2:] == ["param: lr", "metric: loss"]
    assert "param: seed" not in default_columns(RUNS)
    assert {"param: seed", "tag: team", "metric: loss"} <= set(known_columns(RUNS))


def test_groups_have_mean_and_range_and_open():
    closed = table(RUNS, ["status", "metric: loss"], by="experiment", sort="metric: loss")
    assert names(closed) == ["vision (2)", "text (1)"]
    assert closed.rows[0].cells == ("2 finished", "0.2000 (0.1000 – 0.3000)")
    assert closed.rows[0].uuids == ("b", "a")
    opened = table(RUNS, ["status"], by="experiment", opened=[group_key("vision")])
    assert names(opened) == ["vision (2)", "a", "b", "text (1)"]
    assert (opened.count, opened.rows[0].open) == (4, True)


def test_runs_without_what_they_are_grouped_by_are_a_group():
    assert names(table(RUNS, by="tag: team")) == ["(none) (2)", "x (1)"]


def test_a_screenful_at_a_time():
    found = table(RUNS, first=1, most=1)
    assert (names(found), found.count) == (["b"], 3)
    assert names(table(RUNS, first=9, most=2)) == ["c"]


def test_ten_thousand_runs_are_sorted_and_grouped_at_once():
    metrics = {f"m{n}.x.max": float(n) for n in range(50)}
    runs = [
        listed(f"{n}", group=f"w{n % 50}", metrics={**metrics, "loss": n % 97 / 7}, after_s=n)
        for n in range(10_000)
    ]
    began = time.thread_time()
    assert (
        len(table(runs, ["status", "metric: loss"], sort="-metric: loss", by="workload").rows) == 50
    )
    assert len(table(runs, ["status", "metric: loss"], sort="metric: loss").rows) == 100
    assert time.thread_time() - began < 1.5  # seconds of the processor, whoever else works
