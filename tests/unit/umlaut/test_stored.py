"""Runs of benchmarks are read back from a real store."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from dippm.measure.readings import Quantity, Readings
from dippm.measure.sampler_writer import Writer
from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import End, Moment, Span, Start
from dippm.runs.store.runs import open_store
from dippm.umlaut import (
    Benchmark,
    BenchmarkSupervisor,
    GPUMemoryMetric,
    LossTracker,
    MemoryMetric,
    TimeMetric,
)
from dippm.umlaut.descriptions import DESCRIPTIONS, describe_metrics
from dippm.umlaut.importing import attach_now, import_database
from dippm.umlaut.rows import rows_of_folder, stored_rows

from .test_import import BEGAN, ROWS, UUID, made

pytest.importorskip("mlflow")
pytestmark = pytest.mark.slow


def test_rows_are_the_same_in_the_store(here: Path) -> None:
    benchmark = Benchmark("KAI.db")

    @BenchmarkSupervisor([TimeMetric("time"), MemoryMetric("memory", 0.05)], benchmark)
    def train() -> None:
        LossTracker(benchmark).track([1.0, 0.5])

    train()
    train()
    benchmark.close()
    before = benchmark.rows()
    read = Benchmark("KAI.db", mode="r") if (here / "KAI.db").exists() else None
    assert read is None  # nobody has attached it yet
    assert attach_now([benchmark.folder], None) == (1, "")  # type: ignore[list-item]
    after = Benchmark("KAI.db", mode="r").query()
    assert after == before
    one = Benchmark("KAI.db", mode="r").query(uuid=benchmark.uuid, measure_type="time")
    assert [row.value for row in one] == [r.value for r in before if r.measure_type == "time"]


def test_metrics_of_two_gpus_keep_their_own_readings_in_the_store(here: Path) -> None:
    metrics = [GPUMemoryMetric("first", id=0), GPUMemoryMetric("second", id=1)]
    tags = {DESCRIPTIONS: json.dumps({"step": describe_metrics(metrics)})}
    start = Start("ab" * 16, "gpus", "tests", Moment.now(), tags=tags, store=f"{here}/gpus.db")
    folder = RunFolder.create(start)
    begun = start.at.monotonic_ns
    folder.span(Span(1, "step", begun, begun + 10**9))
    for device, used_mb in (("0", 100.0), ("1", 200.0)):
        writer = Writer(folder.path / f"samples-7-1-{device}.dippm", [_Gpu()], {"pid": 1, "hz": 10})
        writer.add(0, Readings(begun + 10**8, {"memory_used_mb": used_mb}, {}))
        writer.close({"end": "the watched process has ended", "missed": 0, "cpu_s": 0.0})
    folder.end(End("finished", Moment.now()))
    folder.close()
    before = rows_of_folder(folder.path)
    assert [(row.description, row.value) for row in before] == [("first", 100), ("second", 200)]
    assert attach_now([folder.path], None) == (1, "")
    assert Benchmark("gpus.db", mode="r").query() == before


class _Gpu:
    name, quantities = "nvml", (Quantity("memory_used_mb", "MiB", "device", "memory in use"),)


def test_an_imported_database_is_in_the_store_once(here: Path) -> None:
    path = made(here / "old.db")
    store = f"sqlite:///{here / 'new.db'}"
    for _ in range(2):
        imported = import_database(path, store=store)
        attach_now([*imported.folders], None)
    rows = Benchmark("new.db", mode="r").query(uuid=UUID)
    values = {row.value for row in rows if row.value is not None}
    assert values == {200.25, 0.3125, 0.25, 0.0625}
    every = Benchmark("new.db", mode="r").query()
    assert len({row.uuid for row in every}) == 2
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM measurement").fetchone() == (len(ROWS),)


@pytest.mark.parametrize("later_s", [20.0, 20.0625])
@pytest.mark.parametrize("samples", [48, 50])
def test_series_of_an_old_database_keep_their_own_times(
    here: Path, store_file: Path, later_s: float, samples: int
) -> None:
    def series(first_s: float, many: int) -> dict[str, list[object]]:
        at = [str(BEGAN + timedelta(seconds=first_s + number / 10)) for number in range(many)]
        return {"timestamps": [*at], "measurements": [first_s + number for number in range(many)]}

    rows = [
        (UUID, 30.0, "cpu", "cpu", series(1.0, 48), "%", "bloat"),
        (UUID, 30.0, "memory", "memory", series(later_s, samples), "MiB", "bloat"),
        (UUID, 30.0, "power", "power", series(1.0, 48), "W", "bloat"),
    ]
    imported = import_database(made(here / "old.db", rows))
    assert attach_now(imported.folders, str(store_file)) == (2, "")
    run = open_store(str(store_file)).run(UUID.replace("-", ""))
    began_ns = run.start.at.monotonic_ns
    found = {
        column.series: ((column.time_ns[0] - began_ns) / 1e9, column.values.tolist())
        for column in run.columns
    }
    for name, first_s, many in (("cpu", 1, 48), ("memory", later_s, samples), ("power", 1, 48)):
        at_s, values = found[f"umlaut.{name}"]
        assert at_s == pytest.approx(first_s, abs=1e-6)
        assert values == [first_s + number for number in range(many)]
    memory = next(row for row in stored_rows(str(store_file), UUID) if row.description == "memory")
    assert memory.value == later_s + samples - 1
    assert memory.start_s + memory.series[0][0] == pytest.approx(later_s, abs=1e-6)


READ_AT_ONCE = """
from dippm.umlaut import Benchmark, BenchmarkSupervisor, TimeMetric

bm = Benchmark("race.db")

@BenchmarkSupervisor([TimeMetric("time")], bm)
def train():
    pass

train()
bm.close()
(row,) = Benchmark("race.db", mode="r").query(uuid=bm.uuid, measure_type="time")
print(row.method_name, row.value == bm.rows()[0].value)
"""


def test_the_rows_of_a_closed_benchmark_can_be_read(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIPPM_ATTACH")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    words = [sys.executable, "-c", READ_AT_ONCE]
    done = subprocess.run(words, capture_output=True, text=True, cwd=here)
    assert (done.stdout, done.returncode) == ("train True\n", 0), done.stderr


def test_a_store_that_cannot_be_written_is_said_when_a_benchmark_closes(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("DIPPM_ATTACH")
    (here / "race.db").write_text("no database")
    benchmark = Benchmark("race.db")
    benchmark.close()
    assert "`dippm runs --attach` says why" in caplog.text
    assert benchmark.folder is not None
    assert (benchmark.folder / "end.json").exists()
