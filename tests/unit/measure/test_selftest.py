"""The self-test of our overhead, with workloads of no size."""

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.errors import MeasurementError
from dippm.measure.selftest import Plan, Targets, interval, overhead
from dippm.show.report.console import others_table, overhead_table

SMALL = Plan(sleep_s=0.05, sort_mb=0.5, matmul=0, repeats=2, rates_hz=(10.0, 50.0), watch_s=0.1)


def _text(table):
    """Return what a wide terminal shows."""
    file = io.StringIO()
    Console(file=file, width=400).print(table)
    return file.getvalue()


@pytest.fixture(scope="module")
def heard():
    """What is told while it runs."""
    return []


@pytest.fixture(scope="module")
def report(heard):
    targets = Targets({10.0: 1e9, 50.0: 0.0}, rss_mb=1e9, slow_down_percent=1e9, start_ms=1e9)
    return overhead(SMALL, targets, progress=heard.append)


def test_each_figure_has_an_interval_and_a_verdict(report):
    by_name = {figure.what: figure for figure in report.figures}
    of_sampler = {"CPU at 10 Hz", "CPU at 50 Hz", "CPU to its first reading", "resident memory"}
    assert {f"sampler {what}" for what in of_sampler} <= set(by_name)
    assert {"slow-down of sleep at 10 Hz", "slow-down of sort at 50 Hz"} <= set(by_name)
    assert {"CPU time inside the workload", "memory inside the workload"} <= set(by_name)
    assert not any("matmul" in what for what in by_name)
    for figure in report.figures:
        assert math.isfinite(figure.mean)
        if figure.count > 1:
            assert figure.low <= figure.mean <= figure.high
    assert by_name["sampler CPU at 10 Hz"].count == 4
    assert by_name["slow-down of sleep at 10 Hz"].count == 2
    assert 5 < by_name["sampler resident memory"].mean < 40
    assert by_name["sampler CPU at 50 Hz"].mean > 0
    assert by_name["an empty loop at 50 Hz"].mean > 0
    assert by_name["sampler CPU to its first reading"].mean > 1
    assert by_name["sampler CPU to its first reading"].count == 8


def test_every_step_is_told_with_how_many_there_are_and_how_long_they_will_last(report, heard):
    steps = [told for told in heard if told.startswith("step")]
    assert len(steps) == 12
    assert steps[0] == "step 1 of 12: sleep, alone"
    assert steps[6] == "step 7 of 12, about 1 min left: sleep, sampled at 10 Hz"
    assert heard[-1] == "an empty loop at 50 Hz"
    assert report.repeats == 2


def test_no_repetition_begins_that_would_last_beyond_the_limit():
    plan = replace(SMALL, sleep_s=0, rates_hz=(10.0,), repeats=50, limit_s=0.0)
    heard = []
    report = overhead(plan, progress=heard.append)
    assert report.repeats == 1
    assert len([told for told in heard if told.startswith("step")]) == 2
    assert "1 of 50 repetitions" in _text(overhead_table(report))
    assert report.to_dict()["repeats"] == 1


def test_our_figures_stand_above_those_of_other_tools(report):
    rows = _text(others_table(report)).splitlines()
    ours, theirs = (next(row for row in rows if name in row) for name in ("DIPPM", "UMLAUT"))
    assert rows.index(ours) < rows.index(theirs)
    by_name = {figure.what: figure for figure in report.figures}
    assert f"{by_name['sampler CPU at 10 Hz'].mean:.2f}" in ours
    assert "305" in theirs


def test_nothing_to_run_is_an_error():
    with pytest.raises(MeasurementError, match="every workload has size 0"):
        overhead(Plan(sleep_s=0, sort_mb=0, matmul=0))


def test_what_is_above_its_target_fails_the_test(report):
    above = {figure.what for figure in report.figures if figure.verdict == "above"}
    assert "sampler CPU at 50 Hz" in above
    assert "sampler CPU at 10 Hz" not in above
    assert not report.ok
    assert report.to_dict()["ok"] is False
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_command_prints_figures_and_fails_above_target(monkeypatch, report):
    monkeypatch.setattr("dippm.measure.selftest.overhead", lambda plan, progress: report)
    words = ["selftest", "overhead", "--sleep-s", "0.05", "--sort-mb", "0", "--matmul", "0"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 1
    assert "sampler CPU at 50 Hz" in answer.stdout
    assert "above" in answer.stdout
    as_json = CliRunner().invoke(app, [*words, "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["plan"]["sort_mb"] == 0.5


def test_a_log_gets_a_line_for_each_step_and_full_sizes_are_those_of_the_deliverable(
    monkeypatch, report
):
    asked = []

    def told(plan, progress):
        asked.append(plan)
        progress("step 1 of 1: sleep, alone")
        return report

    monkeypatch.setattr("dippm.measure.selftest.overhead", told)
    answer = CliRunner().invoke(app, ["selftest", "overhead", "--full", "--minutes", "30"])
    assert answer.stderr == "step 1 of 1: sleep, alone\n"
    assert (asked[0].sleep_s, asked[0].sort_mb, asked[0].matmul) == (10.0, 1024.0, 10_000)
    assert asked[0].limit_s == 1800
    quiet = CliRunner().invoke(app, ["selftest", "overhead", "--quiet"])
    assert quiet.stderr == ""
    assert asked[1].sort_mb == 128


def test_a_sampler_that_cannot_start_is_an_error(monkeypatch):
    words = ["selftest", "overhead", "--repeats", "1", "--sleep-s", "0.01", "--sort-mb", "0"]
    answer = CliRunner().invoke(app, [*words, "--matmul", "0", "--sources", "nosuch", "--json"])
    assert answer.exit_code == 1
    assert "did not start" in json.loads(answer.stdout)["error"]["message"]


def test_intervals_are_students():
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert (high - low) / 2 == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert interval([5.0]) == (5.0, None, None)
