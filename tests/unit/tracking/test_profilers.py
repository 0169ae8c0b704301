"""Profilers: on request, of one iteration, and never in a run whose times count."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.errors import ListenerError, ProfilerError, UnknownNameError
from dippm.runs.store.runs import open_store
from dippm.runs.tracking.listeners import split_profiler
from dippm.runs.tracking.run_comparison import compare_run
from dippm.runs.tracking.run_config import RunConfig, checked
from tests.run_folders import make_run
from tests.unit.tracking import commands

LOOP = """
import torch
from dippm.runs.tracking import iterations

weight = torch.ones(64, 64)
for number in iterations(range(4), name="step"):
    with torch.profiler.record_function(f"pass {number}"):
        weight = weight @ weight / 64
"""
NSIGHT = """#!/bin/sh
echo "$0 $@" > "$FAKE_SAID"
while [ $# -gt 0 ]; do
  case "$1" in
    --output|--export) echo report > "$2.$(basename "$0")-rep"; shift 2; exec "$@" ;;
  esac
  shift
done
"""


@pytest.fixture
def nsight(tmp_path, monkeypatch):
    """Stand-ins for nsys and ncu; return the file with what they were told."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "bin").mkdir()
    for name in ("nsys", "ncu"):
        (tmp_path / "bin" / name).write_text(NSIGHT)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("FAKE_SAID", str(tmp_path / "said"))
    return tmp_path / "said"


@pytest.mark.parametrize("name", ["nsys", "nsysraw", "ncu", "ncuraw"])
def test_a_profiler_that_is_missing_is_an_error_before_the_start(name, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProfilerError, match=f"{name[:3].rstrip('r')}.* is not installed"):
        checked(RunConfig(("true",), profile=name))


def test_torch_that_is_missing_too(tmp_path):
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    python.chmod(0o755)
    with pytest.raises(ProfilerError, match="has no torch"):
        checked(RunConfig((str(python), "x.py"), profile="torch"))
    assert checked(RunConfig((sys.executable, "x.py"), profile="torch")).profile == "torch"
    assert checked(RunConfig(("sh", "train.sh"), profile="torch")).profile == "torch"


def test_what_is_no_profiler_is_an_error_that_guesses():
    with pytest.raises(UnknownNameError, match="nsys"):
        checked(RunConfig(("true",), profile="nsy"))
    with pytest.raises(ProfilerError, match="no iteration -1"):
        checked(RunConfig(("true",), profile="torch", profile_at=-1))


@pytest.mark.parametrize("metrics", [("tree", "gpm@1"), ("dcgm",), ("gpm:1",)])
def test_nsight_and_the_units_of_a_gpu_exclude_each_other(nsight, metrics):
    with pytest.raises(ProfilerError, match="same counters"):
        checked(RunConfig(("true",), profile="ncu", metrics=metrics))
    checked(RunConfig(("true",), profile="ncu", metrics=("tree", "nvml")))


def test_torch_profiles_one_iteration(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    given = {"profile": "torch", "profile_at": 2, "metrics": []}
    made = commands.run(tmp_path / "spool", sys.executable, "loop.py", given=given, cwd=tmp_path)
    assert made.returncode == 0
    assert b"dippm:" not in made.stderr  # torch itself talks there
    told = commands.ended(tmp_path / "spool")
    assert told.start.tags["profiled"] == "torch"
    assert "trouble" not in told.start.tags
    assert [span.name for span in told.spans] == ["step"] * 4
    trace = json.loads((told.path / "artifacts" / "profile" / "torch.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert "pass 2" in names
    assert not names & {"pass 1", "pass 3"}
    assert "aten::mm" in (told.path / "artifacts" / "profile" / "torch.txt").read_text()


def test_without_a_request_nothing_is_profiled(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    commands.run(tmp_path / "spool", sys.executable, "loop.py", given={"metrics": []}, cwd=tmp_path)
    told = commands.ended(tmp_path / "spool")
    assert "profiled" not in told.start.tags
    assert len(told.spans) == 4
    assert not (told.path / "artifacts").exists()


def test_an_iteration_that_never_came_is_said(tmp_path):
    given = {"profile": "torch", "profile_at": 9, "metrics": []}
    (tmp_path / "loop.py").write_text(LOOP)
    made = commands.run(tmp_path / "spool", sys.executable, "loop.py", given=given, cwd=tmp_path)
    assert made.returncode == 0
    assert b"torch saw no iteration 9" in made.stderr
    assert "no iteration 9" in commands.ended(tmp_path / "spool").start.tags["trouble"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("nsys", "--nvtx-capture=profile"), ("ncu", "--nvtx-include profile/"), ("nsysraw", "")],
)
def test_nsight_is_put_before_the_command(nsight, tmp_path, name, words):
    made = commands.run(
        tmp_path / "spool",
        *("sh", "-c", "echo $DIPPM_PROFILE $0; exit 3", "one two"),
        given={"profile": name, "profile_at": 5, "metrics": []},
    )
    assert (made.returncode, made.stdout) == (3, f"{name}:5 one two\n".encode())
    told = commands.ended(tmp_path / "spool")
    assert told.start.command[0] == "sh"
    said = nsight.read_text()
    assert words in said
    assert ("nvtx=" in said or "capture" in said) == (name == "nsys")
    (report,) = (told.path / "artifacts" / "profile").iterdir()
    assert report.read_text() == "report\n"


def test_a_profiled_run_is_no_measurement(tmp_path, store_file):
    folder = make_run(tmp_path / "spool", tags={"profiled": "ncu"}, prediction={"conditions": {}})
    run = open_store(str(store_file)).attach(folder)
    with pytest.raises(ProfilerError, match="profiled by ncu"):
        compare_run(run)
    refused = CliRunner().invoke(
        app, ["compare-run", run.uuid[:8], "--store", str(store_file), "--json"]
    )
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["error"]["type"] == "ProfilerError"


def test_a_row_of_a_plan_names_its_profiler_among_its_listeners(nsight, tmp_path):
    plan = tmp_path / "plan.csv"
    plan.write_text(
        "Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params\n"
        "1,1,,,-,-,work.sh,top+nsysraw,\n"
    )
    (tmp_path / "work.sh").write_text("#!/bin/sh\necho worked\n")
    (tmp_path / "work.sh").chmod(0o755)
    held = {**os.environ, **commands.environment(tmp_path / "spool")}
    held["XDG_STATE_HOME"] = str(tmp_path / "state")
    words = [sys.executable, "-m", "dippm", "plan", "run", str(plan)]
    made = subprocess.run(words, env=held, capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stderr
    told = commands.ended(tmp_path / "spool")
    assert told.start.tags["profiled"] == "nsysraw"
    assert (told.path / "artifacts" / "profile" / "nsysraw.nsys-rep").exists()
    plan.write_text(plan.read_text().replace("FINISHED", "").replace("nsysraw", "ncu"))
    (tmp_path / "bin" / "ncu").unlink()
    refused = subprocess.run(words, env=held, capture_output=True, text=True, timeout=240)
    assert refused.returncode == 1
    assert "ncu is not installed" in refused.stderr


def test_two_profilers_and_one_that_attaches_are_refused():
    assert split_profiler(["top+nsys", "-"]) == (("top",), "nsys")
    with pytest.raises(ListenerError, match="cannot both"):
        split_profiler(["nsys", "ncu"])
    with pytest.raises(ListenerError, match="attaches"):
        split_profiler(["ncuattach"])
