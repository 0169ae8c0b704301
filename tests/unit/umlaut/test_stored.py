"""Runs of benchmarks are read back from a real store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dippm.umlaut import Benchmark, BenchmarkSupervisor, LossTracker, MemoryMetric, TimeMetric
from dippm.umlaut.importing import import_database
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
