"""Experiments, workloads, runs: filters and the selection across them; explorations as files."""

from __future__ import annotations

import json

import pytest

from dippm.errors import RunError
from dippm.show.ui.exploration import ChartSelection, ChartView, ExplorationError, exploration_of
from dippm.show.ui.selection import count_names, filter_runs, labels, runs_within
from tests.unit.ui.runs_in_memory import listed

RUNS = [
    listed("a1", group="w", words="resnet\nlr\n0.1", metrics={"loss": 0.2}),
    listed("b2", group="w", words="resnet\nlr\n0.2", metrics={"loss": 0.9}, status="failed"),
    listed("c3", experiment="text", words="bert", name="a1"),
]


def found(**given):
    return [run.uuid for run in filter_runs(RUNS, **given)]


def test_search_wants_all_words_in_any_case():
    assert found(search="RESNET 0.1") == ["a1"]
    assert found(search="") == ["a1", "b2", "c3"]


def test_status_and_condition_filter():
    assert found(status="failed") == ["b2"]
    assert found(condition="loss < 0.5") == ["a1"]
    assert found(condition="loss > 0.1, loss < 0.95") == ["a1", "b2"]


def test_a_run_without_the_metric_does_not_fulfil_a_condition():
    assert "c3" not in found(condition="loss != 77")


def test_a_condition_that_is_none_says_what_one_is():
    with pytest.raises(RunError, match="Write a metric"):
        found(condition="loss is small")


def test_within_experiments_and_workloads():
    assert [run.uuid for run in runs_within(RUNS, ["vision"])] == ["a1", "b2"]
    assert [run.uuid for run in runs_within(RUNS, [], [("text", "(none)")])] == ["c3"]
    assert len(runs_within(RUNS)) == 3


def test_counting_keeps_order():
    assert count_names(run.experiment for run in RUNS) == [("vision", 2), ("text", 1)]


def test_labels_tell_runs_of_one_name_apart():
    assert labels(RUNS) == {"a1": "a1 a1", "b2": "b2", "c3": "a1 c3"}


EXPLORATION = ChartSelection(
    runs=("a1", "c3"),
    hidden=("c3",),
    charts=(ChartView(stream="tree.rss_mb", log=True, x=(1.5, 2.5), y=(0, 9)),),
    smoothing=60,
    alignment="clock",
    grouping="merged",
    spans=True,
    prediction=False,
    search="resnet",
)


def test_an_exploration_comes_back_as_it_was():
    assert exploration_of(EXPLORATION.text()) == EXPLORATION
    assert json.loads(EXPLORATION.text())["kind"] == "dippm exploration"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"smoothing": 100}, "smoothing"),
        ({"alignment": "moon"}, "alignment"),
        ({"version": 2}, "version"),
        ({"kind": "chart"}, "kind"),
        ({"surprise": 1}, "surprise"),
        ({"charts": [{"stream": "a"}, {"stream": "a"}]}, "the same"),
        ({"charts": [{"stream": "a", "x": [0, None]}]}, "charts.0.x"),
        ({"runs": ["x" * 501]}, "runs"),
    ],
)
def test_a_file_that_is_no_exploration_says_where(change, word):
    document = {**json.loads(EXPLORATION.text()), **change}
    with pytest.raises(ExplorationError, match=word):
        exploration_of(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", '{"smoothing": NaN}'])
def test_a_file_of_anything_else_is_refused(text):
    with pytest.raises(ExplorationError, match="no exploration"):
        exploration_of(text)


def test_a_file_that_is_too_large_is_refused():
    with pytest.raises(ExplorationError, match="4 MiB"):
        exploration_of(" " * (5 * 2**20))
