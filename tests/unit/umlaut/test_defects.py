"""U1 to U13: what was wrong with UMLAUT, one test each (the inventory of measuring tools)."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import dippm.umlaut
from dippm.runs.store.folder import read_folder
from dippm.umlaut import (
    Benchmark,
    BenchmarkSupervisor,
    ConfusionMatrixTracker,
    CPUMetric,
    EnergyMetric,
    GPUEnergyMetric,
    GPUMemoryMetric,
    LatencyMetric,
    LossTracker,
    MemoryMetric,
    PowerMetric,
    ThroughputMetric,
    TimeMetric,
)
from dippm.umlaut.importing import attach_now
from dippm.umlaut.rows import rows_of_folder

Script = Callable[..., CompletedProcess[str]]
BURN = """
import time
held = bytearray(b"x") * (200 << 20)
before = time.process_time()
while time.process_time() - before < 0.5:
    pass
time.sleep(0.3)
"""


@pytest.fixture
def stored(here: Path) -> Benchmark:
    """A run with a confusion matrix, in the store KAI.db."""
    pytest.importorskip("mlflow")
    import numpy as np

    made = Benchmark("KAI.db", name="the run")
    ConfusionMatrixTracker(made).track(np.array([[7, 2], [1, 9]]), ["cat", "dog"], "matrix")
    made.close()
    assert made.folder is not None
    assert attach_now([made.folder], None) == (1, "")
    return made


@pytest.mark.slow
def test_u1_the_terminal_starts_on_this_python_and_draws_what_is_chosen(stored: Benchmark) -> None:
    pexpect = pytest.importorskip("pexpect")
    words = ["-m", "dippm", "plot", "--store", "KAI.db"]
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    child = pexpect.spawn(
        sys.executable,
        words,
        env={**os.environ, "PYTHONPATH": path},
        encoding="utf-8",
        timeout=300,
        dimensions=(60, 120),
    )
    for menu, offered in (("Runs:", "the run"), ("Types:", "confusion_matrix")):
        child.expect(menu)
        child.expect(offered)
        child.send("a\r")
    child.expect(r"dog +1 +9")
    child.expect(pexpect.EOF)
    child.wait()
    child.close()
    assert child.exitstatus == 0


def test_u2_what_a_child_process_uses_counts(benchmark: Benchmark) -> None:
    import subprocess

    metrics = [MemoryMetric("memory", interval=0.05), CPUMetric("cpu", interval=0.05)]

    @BenchmarkSupervisor(metrics, benchmark)
    def burn() -> None:
        subprocess.run([sys.executable, "-c", BURN], check=True)

    burn()
    found = {row.measure_type: row for row in benchmark.rows()}
    memory, cpu = found["memory"].value, found["cpu"].value
    assert memory is not None
    assert cpu is not None
    assert found["cpu"].seconds is not None
    assert memory > 200
    assert cpu * found["cpu"].seconds / 100 >= 0.45


def test_u3_five_calls_are_five_rows_and_latency_is_of_one(benchmark: Benchmark) -> None:
    latency = LatencyMetric("latency")

    @BenchmarkSupervisor([TimeMetric("time"), latency], benchmark)
    def step() -> None:
        latency.track(1)
        time.sleep(0.02)

    for _ in range(5):
        step()
    times = [row.value for row in benchmark.rows() if row.measure_type == "time"]
    latencies = [row.value for row in benchmark.rows() if row.measure_type == "latency"]
    assert len(times) == len(latencies) == 5
    assert all(0.02 <= one <= whole for one, whole in zip(latencies, times, strict=True))


def test_u4_throughput_without_entries_is_absent_and_the_result_kept(benchmark: Benchmark) -> None:
    supervised = BenchmarkSupervisor([ThroughputMetric()], benchmark)(lambda: "result")
    assert supervised() == "result"
    (row,) = benchmark.rows()
    assert (row.value, row.status) == (None, "ok")
    assert row.absent


def test_u5_trackers_take_lists(benchmark: Benchmark) -> None:
    LossTracker(benchmark).track([0.5, 0.25], "loss")
    ConfusionMatrixTracker(benchmark).track([[1, 0], [0, 1]], ["a", "b"], "matrix")
    assert [row.data for row in benchmark.rows()] == [
        [0.5, 0.25],
        {"matrix": [[1, 0], [0, 1]], "labels": ["a", "b"]},
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("back_end", "file", "shown"),
    [
        ("text", "", "cat"),
        ("csv", "", "dog"),
        ("json", "", '"cat"'),
        ("plotly", "runs.html", "cat"),
        ("matplotlib", "runs.png", "PNG"),
    ],
)
def test_u6_every_back_end_draws_a_tracked_confusion_matrix(
    stored: Benchmark, here: Path, back_end: str, file: str, shown: str
) -> None:
    from typer.testing import CliRunner

    from dippm.cli.app import app

    words = ["plot", "--store", "KAI.db", "-u", stored.uuid, "-t", "confusion_matrix"]
    answer = CliRunner().invoke(app, [*words, "-p", back_end])
    assert answer.exit_code == 0, answer.output
    drawn = (here / file).read_bytes().decode("latin-1") if file else answer.stdout
    assert shown in drawn
    if file == "":
        assert "7" in drawn
        assert "9" in drawn


def test_u7_an_exception_is_a_failed_row(benchmark: Benchmark, script: Script, here: Path) -> None:
    @BenchmarkSupervisor([TimeMetric("time")], benchmark)
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    (row,) = benchmark.rows()
    assert (row.status, row.error) == ("failed", "KeyError")
    assert row.value is not None
    text = """
from dippm.umlaut import Benchmark
print(Benchmark("other.db").uuid, flush=True)
raise ValueError("so it ends")
"""
    ended = script(text, check=False)
    assert ended.returncode == 1
    end = read_folder(here / "spool" / ended.stdout.strip()).end
    assert end is not None
    assert (end.status, end.error) == ("failed", "ValueError: so it ends")


def test_u8_two_benchmarks_in_a_folder_keep_their_rows(here: Path) -> None:
    first, second = Benchmark("a.db", tmp_dir="tmp"), Benchmark("a.db", tmp_dir="tmp")
    for number, made in enumerate((first, second, first)):
        BenchmarkSupervisor([TimeMetric()], made, name=f"call {number}")(lambda: None)()
    first.close()
    second.close()
    assert [row.method_name for row in first.rows()] == ["call 0", "call 2"]
    assert [row.method_name for row in second.rows()] == ["call 1"]


def test_u9_without_rapl_the_function_runs_and_nothing_spins(benchmark: Benchmark) -> None:
    metrics = [EnergyMetric("energy"), PowerMetric("power", interval=0.01)]

    @BenchmarkSupervisor(metrics, benchmark)
    def idle() -> float:
        before = time.process_time()
        time.sleep(0.5)
        return time.process_time() - before

    assert idle() < 0.05
    if not Path("/sys/class/powercap/intel-rapl:0/energy_uj").exists():
        assert {row.value for row in benchmark.rows()} == {None}
        assert all("powercap" in row.absent for row in benchmark.rows())


def test_u10_wraps_no_metrics_and_async(benchmark: Benchmark) -> None:
    @BenchmarkSupervisor([], benchmark)
    def named() -> int:
        """What it does."""
        return 1

    @BenchmarkSupervisor([TimeMetric()], benchmark)
    async def wait() -> None:
        await asyncio.sleep(0.05)

    assert (named.__name__, named.__doc__, named()) == ("named", "What it does.", 1)
    asyncio.run(wait())
    call, timed = benchmark.rows()
    assert call.measure_type == "call"
    assert timed.value is not None
    assert timed.value >= 0.045


def test_u11_what_the_import_costs(script: Script) -> None:
    text = """
import json, os, pathlib, sys, threading, time
def rss_mb():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
before_mb, before_s = rss_mb(), time.process_time()
import dippm.umlaut
print(rss_mb() - before_mb, time.process_time() - before_s)
print(*sys.modules)
"""
    cost, modules = script(text).stdout.splitlines()
    memory_mb, cpu_s = map(float, cost.split())
    assert memory_mb <= 10
    assert cpu_s <= 0.5  # far from UMLAUT's 1.5; the goal of 0.05 is not shown by this
    assert not set(modules.split()) & {"numpy", "torch", "mlflow", "pandas", "sqlalchemy"}


def test_u12_the_documented_names_are_those_that_can_be_imported() -> None:
    root = Path(__file__).parents[3]
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "examples").glob("*.py")]
    named = set()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        named |= set(re.findall(r"\bumlaut\.([A-Z]\w+)", text))
        for names in re.findall(r"from dippm\.umlaut import ([\w, ]+)", text):
            named |= set(names.replace(" ", "").split(","))
    for name in named:
        assert getattr(dippm.umlaut, name).__name__ == name
    exported = {name for name in dippm.umlaut.__all__ if name.endswith(("Metric", "Tracker"))}
    assert exported - {"Metric"} <= named


def test_u13_a_gpu_is_chosen_and_has_an_energy_counter(here: Path) -> None:
    if find_spec("pynvml") is None:
        pytest.skip("nvidia-ml-py is not installed")
    metrics = [GPUMemoryMetric("a", 0.05, id=0), GPUMemoryMetric("b", 0.05, id=1)]
    made = Benchmark("gpus.db")
    BenchmarkSupervisor([*metrics, GPUEnergyMetric("e", 0.05)], made)(lambda: None)()
    assert made.folder is not None
    deadline = time.monotonic() + 120
    while sum(file.stat().st_size > 0 for file in made.folder.glob("samples-*")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    made.close()
    rows = rows_of_folder(made.folder)
    assert [row.description for row in rows] == ["a", "b", "e"]
    assert {file.stem.split("-", 3)[3] for file in made.folder.glob("samples-*")} == {"0", "1"}
    assert all((row.value is None) == bool(row.absent) for row in rows)
