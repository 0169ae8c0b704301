"""What tracking a command costs is measured by a command."""

from __future__ import annotations

import json
import os
import sys

import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.errors import MeasurementError
from dippm.measure.selftest import figure
from dippm.runs.tracking import run_cost as subject
from dippm.runs.tracking.run_cost import RunCost, measure_command, run_cost


def test_a_tracked_command_is_held_against_the_same_alone(monkeypatch):
    monkeypatch.setenv("DIPPM_ATTACH", "now")
    heard: list[str] = []
    cost = run_cost(0.5, repeats=2, progress=heard.append)
    by_name = {each.what: each for each in cost.figures}
    assert by_name["memory beside it"].mean > 5  # of a Python that keeps the run
    beside, attached = by_name["CPU time beside it"], by_name["CPU time until it is attached"]
    assert 0.01 < beside.mean < attached.mean
    assert (beside.target, attached.target) == (0.6, 1.0)
    assert by_name["wall time of a tracked command"].count == 2
    turns = ["alone, 1 of 2", "tracked, 1 of 2", "alone, 2 of 2", "tracked, 2 of 2"]
    assert heard == ["making a store", *turns]


LEAVES = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
while time.process_time() < 0.5:
    pass
"""


def test_what_a_command_leaves_behind_counts_afterwards():
    found = measure_command([sys.executable, "-c", LEAVES], dict(os.environ))
    assert found.cpu_s < 0.4
    assert found.cpu_afterwards_s > 0.5


def test_a_command_that_fails_is_no_measurement():
    with pytest.raises(MeasurementError, match="ended with exit code 1"):
        measure_command(["false"], dict(os.environ))


@pytest.mark.parametrize(("wall_s", "code"), [(0.4, 0), (1.5, 1)])
def test_the_command_prints_figures_and_fails_above_target(monkeypatch, wall_s, code):
    found = RunCost(15.0, (figure("wall time of a tracked command", "s", [wall_s], 1.0),), 0.1)
    monkeypatch.setattr(subject, "run_cost", lambda *given, **told: found)
    shown = CliRunner().invoke(app, ["selftest", "tracking"])
    assert shown.exit_code == code
    assert f"{wall_s:.2f}" in shown.output
    document = json.loads(CliRunner().invoke(app, ["selftest", "tracking", "--json"]).stdout)
    assert document["ok"] is (code == 0)
    assert document["figures"][0]["target"] == 1.0
