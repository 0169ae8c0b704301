"""Scripts of UMLAUT run with their import line changed, workloads shortened.

BENCHMARK and the list of metrics in METRICS are what the seed document prints (its section on
benchmarking pipelines and figure 12), but for quotes that its scan broke. It prints no whole
script: the bodies of functions, the command that METRICS runs, and the three workloads of MICRO,
which it only describes, are written here. Figure 11, the call of `umlaut-cli`, is not among them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from dippm.runs.store.folder import read_folder
from dippm.runs.tracking.run_comparison import device_of_run
from dippm.umlaut.rows import CallRow, rows_of_folder

Script = Callable[..., CompletedProcess[str]]

BENCHMARK = """
import dippm.umlaut as umlaut

bm = umlaut.Benchmark('KAI.db', description="Benchmark custom scripts.")
metrics = [umlaut.MemoryMetric('memory', interval=0.1)]

@umlaut.BenchmarkSupervisor(metrics, bm, name="training_step")
def train():
    return sum(range(1000))

for _ in range(2):
    assert train() == 499500
print(bm.uuid)
"""

METRICS = """
import json, subprocess, sys
import dippm.umlaut as umlaut

config = json.loads(sys.argv[1])
metrics = []
types = []

if config["memory"]:
    metrics.append(umlaut.MemoryMetric('memory', interval=config["memoryfreq"]))
    types.append("memory")

if config["gpumemory"]:
    metrics.append(umlaut.GPUMemoryMetric('gpumemory', interval=config["memoryfreq"]))
    types.append("gpumemory")

if config["cpu"]:
    metrics.append(umlaut.CPUMetric('cpu', interval=config["cpufreq"]))
    types.append("cpu")

if config["gpu"]:
    metrics.append(umlaut.GPUMetric('gpu', interval=config["cpufreq"]))
    types.append("gpu")

if config["gpupower"]:
    metrics.append(umlaut.GPUPowerMetric('gpupower', interval=config["cpufreq"]))
    types.append("gpupower")

if config["gputime"]:
    metrics.append(umlaut.GPUTimeMetric('gputime'))
    types.append("gputime")

if config["time"] or len(metrics) == 0:
    metrics.append(umlaut.TimeMetric('time'))
    types.append("time")

bm = umlaut.Benchmark('custom_script.db', description="Benchmark custom scripts.")

@umlaut.BenchmarkSupervisor(metrics, bm)
def execute_command(command):
    subprocess.run(command, check=True)

execute_command([sys.executable, "-c", config["program"]])
uuid = bm.uuid
bm.close()
print(uuid, *types)
"""

MICRO = """
import time
import numpy as np
import dippm.umlaut as umlaut

bm = umlaut.Benchmark('meta.db', description="sleep, sort, matrix multiply")
metrics = [umlaut.TimeMetric('time'), umlaut.MemoryMetric('memory', interval=0.1),
           umlaut.CPUMetric('cpu', interval=0.1)]

@umlaut.BenchmarkSupervisor(metrics, bm)
def sleep():
    time.sleep(0.2)

@umlaut.BenchmarkSupervisor(metrics, bm)
def sort():
    np.random.rand(100_000).sort()

@umlaut.BenchmarkSupervisor(metrics, bm)
def matmul():
    np.random.rand(200, 200) @ np.random.rand(200, 200)

sleep(); sort(); matmul()
bm.close()
"""
EVERYTHING = {
    "memory": True,
    "gpumemory": True,
    "cpu": True,
    "gpu": True,
    "gpupower": True,
    "gputime": True,
    "time": True,
    "memoryfreq": 0.1,
    "cpufreq": 0.1,
    "program": "held = bytearray(b'x') * (64 << 20); sum(range(3_000_000))",
}


def rows(here: Path, uuid: str = "") -> list[CallRow]:
    (folder,) = (here / "spool").iterdir()
    assert folder.name.startswith(uuid)
    return rows_of_folder(folder)


def test_a_function_of_a_python_pipeline(script: Script, here: Path) -> None:
    uuid = script(BENCHMARK).stdout.strip()
    found = rows(here, uuid)
    assert [(r.method_name, r.measure_type) for r in found] == [("training_step", "memory")] * 2
    assert all(row.value is not None and row.unit == "MiB" for row in found)
    recorded = read_folder(here / "spool" / uuid)
    assert recorded.start.description == "Benchmark custom scripts."
    assert recorded.start.name == "script.py"
    assert recorded.start.store == f"sqlite:///{here / 'KAI.db'}"
    assert recorded.end is not None  # nobody called close()
    assert recorded.end.status == "finished"


def test_a_command_with_every_metric(script: Script, here: Path) -> None:
    uuid, *types = script(METRICS, json.dumps(EVERYTHING)).stdout.split()
    found = {row.measure_type: row for row in rows(here, uuid)}
    assert set(found) == set(types)
    assert len(types) == 7
    for row in found.values():
        assert row.method_name == "execute_command"
        assert (row.value is None) == bool(row.absent)
    for kind in ("memory", "cpu", "time"):
        assert found[kind].value is not None


def test_a_command_without_a_metric_has_its_time(script: Script, here: Path) -> None:
    nothing = {name: False if value is True else value for name, value in EVERYTHING.items()}
    uuid, *types = script(METRICS, json.dumps({**nothing, "program": "pass"})).stdout.split()
    assert types == ["time"]
    assert [row.measure_type for row in rows(here, uuid)] == ["time"]


def test_the_three_of_the_microbenchmark(script: Script, here: Path) -> None:
    script(MICRO)
    found = rows(here)
    assert {row.method_name for row in found} == {"sleep", "sort", "matmul"}
    assert all(row.value is not None for row in found)
    times = {row.method_name: row.value for row in found if row.measure_type == "time"}
    assert times["sleep"] is not None
    assert times["sleep"] >= 0.2


def test_the_scripts_import_nothing_heavy(script: Script) -> None:
    text = BENCHMARK + "\nimport sys\nprint(*sys.modules)"
    loaded = set(script(text).stdout.split())
    assert not loaded & {"numpy", "torch", "mlflow", "pandas", "sqlalchemy", "plotly", "psutil"}
    assert sys.version_info >= (3, 11)


def test_a_run_says_what_it_depends_on(script: Script, here: Path) -> None:
    folder = here / "spool" / script(BENCHMARK).stdout.strip()
    deadline = time.monotonic() + 120
    while "git_commit" not in (found := " ".join(read_folder(folder).start.environment)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    environment = read_folder(folder).start.environment
    assert environment["host_cores"] == str(os.cpu_count())
    assert "numpy==" in environment["packages"]
    assert device_of_run(read_folder(folder).start)


def test_a_run_that_is_killed_is_lost(script: Script, here: Path) -> None:
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    answer = script(
        BENCHMARK.replace("print(bm.uuid)", "print(bm.uuid, flush=True)\n" + killed), check=False
    )
    folder = here / "spool" / answer.stdout.strip()
    deadline = time.monotonic() + 120
    while (end := read_folder(folder).end) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert end.status == "lost"
