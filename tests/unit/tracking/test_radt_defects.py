"""radT's defects, T2, T3, T7, T8, T10 and T11, each in what stands for it here.

The others are those of plans and of sharing a GPU: tests/unit/plans, tests/unit/colocation.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import psutil
import pytest

from dippm.errors import ListenerError
from dippm.runs.store.columns import read_columns
from dippm.runs.store.runs import open_store
from dippm.runs.tracking.listeners import sources_of
from dippm.runs.tracking.run_config import RunConfig, checked
from tests import fake_nvml
from tests.unit.tracking import commands
from tests.unit.tracking.commands import ROOT

ASLEEP = "import time; time.sleep(1.5)"


def test_t2_cpu_is_that_of_the_runs_process_tree(tmp_path):
    """RadT: everything on the machine that is named python, 178.8 % for a run that sleeps."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        commands.run(
            tmp_path / "spool", sys.executable, "-c", ASLEEP, given={"metrics": sources_of(["top"])}
        )
    finally:
        busy.kill()
        busy.wait()
    columns, _ = read_columns(commands.ended(tmp_path / "spool").samples)
    of_tree = {c.series: c for c in columns if c.scope == "tree"}
    grown = of_tree["tree.cpu_s"].values
    assert grown[-1] - grown[0] < 0.75
    assert {c.scope for c in columns if c.series.startswith("host.")} == {"host"}


def test_t3_the_environment_is_that_of_installed_metadata(tmp_path):
    """RadT: pip.txt and conda.txt hold the usage text of pip and conda."""
    commands.run(tmp_path / "spool", sys.executable, "-c", ASLEEP, given={"metrics": []})
    path = commands.ended(tmp_path / "spool").path
    told = commands.until(
        lambda: commands.read_folder(path).start.environment.get("packages"), "the packages"
    ).splitlines()
    installed = {_plain(f"{d.metadata['Name']}=={d.version}") for d in distributions()}
    assert {_plain(line) for line in told} <= installed
    assert any(line.startswith("numpy==") for line in told)
    assert "usage" not in "".join(told).casefold()


def _plain(line: str) -> str:
    name, _, version = line.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).casefold()}=={version}"


DCGMI = """#!/bin/sh
[ "$1" = discovery ] && { printf '| 0 | Name: x |\\n|   | Device UUID: GPU-0 |\\n'; exit 0; }
[ "$1" = dmon ] || { echo "$@" >> "$FAKE_DCGM_CHANGED"; exit 1; }
while sleep 0.05; do echo "GPU 0 0 0 0 0 0 0 0 0 0 0 0 0"; done
"""


def test_t7_what_is_not_ours_goes_on(tmp_path, monkeypatch):
    """RadT: ends others' MPS daemon and DCGM groups, and empties the machine's page cache."""
    from dippm.measure.sources.registry import open_source

    for name in ("dcgmi", "nv-hostengine"):
        (tmp_path / name).write_text(DCGMI)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DCGM_CHANGED", str(tmp_path / "changed"))
    theirs = [
        subprocess.Popen([tmp_path / name, "dmon"], stdout=subprocess.DEVNULL)
        for name in ("dcgmi", "nv-hostengine")
    ]
    others = set(psutil.Process().children())
    try:
        source = open_source("dcgm")
        commands.until(lambda: source.read().values, "a reading")
        (ours,) = set(psutil.Process().children()) - others
        source.close()
        assert not ours.is_running()
        assert [process.poll() for process in theirs] == [None, None]
        assert not (tmp_path / "changed").exists()  # no group, profile or service was asked for
    finally:
        for process in theirs:
            process.kill()
            process.wait()
    for file in (ROOT / "dippm").rglob("*.py"):
        assert "drop_caches" not in file.read_text(encoding="utf-8"), file


@pytest.mark.skipif(fake_nvml.compiler() is None, reason="needs a C compiler")
def test_t8_absent_is_absent_and_a_sample_has_its_own_time(tmp_path, store_file):
    """RadT: N/A stored as 0, a failure as -1, times of arrival, step 0, one rate."""
    import pyarrow.parquet

    answers = tmp_path / "answers"
    answers.write_text("mig 1\nnvmlDeviceGetPowerUsage 999\n")  # no utilisation; power fails
    library = fake_nvml.build(tmp_path)
    spool = tmp_path / "spool"
    held = {**commands.environment(spool), **fake_nvml.environment(library, answers)}
    held |= {name: commands.environment(spool)[name] for name in ("DIPPM_SPOOL", "DIPPM_ATTACH")}
    held["PYTHONPATH"] = str(ROOT)
    script = (
        "import time\nfrom dippm.radt import radT\n"
        "with radT() as run:\n"
        "    for step in (3, 5): run.log_metric('loss', 1 / step, step)\n"
        "time.sleep(1)\n"
    )
    given = {"metrics": ["tree", "nvml@5"], "hz": 40}
    commands.run(spool, sys.executable, "-c", script, given=given, env=held)
    run = open_store(str(store_file)).attach(commands.ended(spool).path)
    columns = {column.series: column for column in run.columns}
    for name, why in (("utilization_percent", "MIG"), ("power_w", "Unknown")):
        table = pyarrow.parquet.read_table(run.fetch("samples/nvml.parquet"))
        assert table[name].null_count == len(table) > 0
        assert why in run.summaries[f"nvml.{name}"].reason
        assert not run.summaries[f"nvml.{name}"].n
    assert [value.step for value in run.values if value.name == "loss"] == [3, 5]
    between = {name: columns[name].time_ns for name in ("tree.rss_mb", "nvml.memory_used_mb")}
    assert all((time_ns[1:] > time_ns[:-1]).all() for time_ns in between.values())
    assert run.start.at.monotonic_ns - 5e9 < between["tree.rss_mb"][0] < run.end.at.monotonic_ns
    assert len(between["tree.rss_mb"]) > 2 * len(between["nvml.memory_used_mb"])


def test_t10_nothing_of_mlflow_is_changed():
    """RadT: replaces MLflow's own functions when it is imported, and sends a failed batch again.

    That no point is there twice is shown by tests/unit/store/test_runs.py, whose attachers are
    killed at each step.
    """
    code = """
import json, mlflow
from mlflow.tracking import MlflowClient
from mlflow.tracking import fluent
from mlflow.utils import rest_utils
kept = [(place, dict(vars(place))) for place in (mlflow, fluent, MlflowClient, rest_utils)]
import dippm.radt, dippm.runs.store.runs, dippm.runs.tracking.mlflow_context
with dippm.radt.run.RADTBenchmark() as run:
    run.log_metric("loss", 1)
changed = [name for place, before in kept for name, held in before.items()
           if vars(place).get(name) is not held]
print(json.dumps(changed))
"""
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=commands.environment(Path("/nonexistent")),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == []


@pytest.mark.parametrize("name", ["nsys", "ncu", "ncuattach", "macmon", "dcgmi"])
def test_t11_a_listener_that_cannot_work_is_never_ignored(name, monkeypatch, tmp_path):
    """RadT: nsys and ncu are left out silently in its usual mode."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if name == "dcgmi" and os.path.exists("/proc/driver/nvidia"):
        pytest.skip("this machine has a driver")
    with pytest.raises(ListenerError, match=name):
        checked(RunConfig((sys.executable, "-c", ""), metrics=("top", name)))
