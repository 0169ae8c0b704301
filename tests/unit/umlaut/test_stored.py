"""Runs of benchmarks are read back from a real store."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from dippm.measure.readings import Quantity, Readings
from dippm.measure.sampler_writer import Writer
from dippm.store.folder import RunFolder
from dippm.store.record import End, Moment, Span, Start
from dippm.umlaut import (
    Benchmark,
    BenchmarkSupervisor,
    GPUMemoryMetric,
    LossTracker,
    MemoryMetric,
    TimeMetric,
)
from dippm.umlaut.descriptions import DESCRIPTIONS, described
from dippm.umlaut.importing import import_database
from dippm.umlaut.rows import rows_of_folder
from dippm.umlaut.stored import attach_now

from .test_import import ROWS, UUID, made

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
    tags = {DESCRIPTIONS: json.dumps({"step": described(metrics)})}
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
