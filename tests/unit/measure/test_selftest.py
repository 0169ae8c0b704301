"""The self-test of our overhead, with workloads of no size."""

import json
import math

import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.measure.selftest import Plan, Targets, interval, overhead

SMALL = Plan(
    sleep_s=0.05, sort_mb=0.5, matmul=0, repeats=2, rates_hz=(10.0, 50.0), watch_s=0.1
)  # fmt: skip


@pytest.fixture(scope="module")
def report():
    return overhead(SMALL, Targets({10.0: 1e9, 50.0: 0.0}, rss_mb=1e9, slow_down_percent=1e9))


def test_each_figure_has_an_interval_and_a_verdict(report):
    by_name = {figure.what: figure for figure in report.figures}
    assert {"sampler CPU at 10 Hz", "sampler CPU at 50 Hz", "sampler resident memory",
            "slow-down of sleep at 10 Hz", "slow-down of sort at 50 Hz",
            "time inside the workload", "memory inside the workload"} <= set(by_name)  # fmt: skip
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
