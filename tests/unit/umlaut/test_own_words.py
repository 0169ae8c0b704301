"""What scripts of UMLAUT's users say: their own metric classes, its tracker, types and command."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import threading
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dippm.cli.umlaut import read_arguments, show
from dippm.errors import UnknownNameError
from dippm.umlaut import (
    Benchmark,
    BenchmarkSupervisor,
    LossTracker,
    MemoryMetric,
    Metric,
    TimedTTATracker,
    TimeMetric,
)
from dippm.umlaut.importing import attach_now

from .test_import import ROWS, UUID, made

ROOT = Path(__file__).parents[3]


class Opened(Metric):
    """A class of UMLAUT's shape: state in itself, a thread, and a row that it logs."""

    measure_type = "files"
    needs_threading = True
    priority = 3

    def before(self) -> None:
        self.counts: list[int] = []
        self.seen = threading.Event()

    def meanwhile(self, finish_event: threading.Event) -> None:
        while not finish_event.is_set():
            self.counts.append(len(os.listdir("/proc/self/fd")))
            self.seen.set()

    def after(self) -> None:
        self.data = max(self.counts)

    def log(self) -> None:
        self.benchmark.log(
            self.description, self.measure_type, self.serialize(), "n", method_name=self.method_name
        )


class Plain:
    """Not of our class at all, and without a `log`."""

    measure_type, description, unit = "calls", "number of calls", "calls"

    def after(self) -> None:
        self.data = 1.0


def test_metric_classes_of_umlaut_measure(benchmark: Benchmark) -> None:
    @BenchmarkSupervisor([TimeMetric("time"), Opened("open files"), Plain()], benchmark)  # type: ignore[list-item]
    def train(depth: int) -> int:
        with open(__file__, "rb"):
            return train(depth - 1) + 1 if depth else 0

    assert train(2) == 2
    assert len(benchmark.query(measure_type="time")) == 3
    files = benchmark.query(measure_type="files")
    assert [(row.description, row.method_name, row.unit) for row in files] == [
        ("open files", "train", "n")
    ] * 3
    assert all(row.value is not None and row.value > 3 for row in files)
    calls = benchmark.query(measure_type="calls")
    assert [(row.value, row.unit, row.method_name) for row in calls] == [(1, "calls", "train")] * 3


def test_a_metric_class_that_fails_does_not_reach_the_function(benchmark: Benchmark) -> None:
    class Broken(Opened):
        def after(self) -> None:
            raise OSError("no counter")

    @BenchmarkSupervisor([Broken("broken")], benchmark)
    def train() -> int:
        return 7

    assert train() == 7
    (span,) = _recorded(benchmark).spans
    assert span.absent == {"files": "OSError: no counter"}


def _recorded(benchmark: Benchmark) -> Any:
    from dippm.runs.store.folder import read_folder

    assert benchmark.folder is not None
    return read_folder(benchmark.folder)


def test_a_tracker_of_accuracies_takes_a_description(benchmark: Benchmark) -> None:
    tracker = TimedTTATracker(benchmark, 0.9)
    tracker.track(0.5, description="validation")
    tracker.track(0.95, "validation")
    rows = benchmark.query(measure_type="timed tta", description="validation")
    assert [row.data["accuracy"] for row in rows] == [0.5, 0.95]
    assert rows[1].data["seconds_to_target"] == tracker.seconds


def test_types_are_those_that_were_logged(benchmark: Benchmark) -> None:
    benchmark.log("queue", "queue-length", 3, "n", "serve")
    benchmark.log("labels", "confusion-matrix", {"matrix": [[1]], "labels": ["a"]})
    benchmark.log("queue", "queue-age", 5, "s")
    benchmark.log("queue", "queue-length", 4, "n")
    (age,) = benchmark.query(measure_type="queue-age", description="queue")
    assert (age.value, age.unit) == (5, "s")
    row, last = benchmark.query(measure_type="queue-length", description="queue")
    assert last.value == 4
    assert (row.value, row.unit, row.method_name) == (3, "n", "serve")
    assert [row.description for row in benchmark.query(measure_type="confusion-matrix")] == [
        "labels"
    ]


def test_the_command_takes_flags_of_umlaut(
    here: Path,
    store_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # MLflow asks a TensorFlow that was imported for its classes; other tests leave half of one.
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    benchmark = Benchmark(store_file)
    metrics = [TimeMetric("how long"), MemoryMetric("how much", interval=0.01)]

    @BenchmarkSupervisor(metrics, benchmark)
    def train() -> None:
        LossTracker(benchmark).track([2.0, 1.0], "training")

    train()
    benchmark.log("queue", "queue-length", 3, "n", "serve")
    benchmark.close()
    assert benchmark.folder is not None
    _, waiting = attach_now([benchmark.folder], None)
    assert not waiting
    dashed = f"{benchmark.uuid[:8]}-{benchmark.uuid[8:]}"
    words = [str(store_file), "-u", dashed, "-t", "memory", "time"]
    told = ["loss", "queue-length", "-d", "how much", "how long", "training", "queue"]
    show(read_arguments([*words, *told, "-p", "csv"]))
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["type"] for row in rows} == {"tree.rss_mb", "time_s", "loss", "queue"}
    show(read_arguments(words))
    assert (here / "umlaut.html").stat().st_size > 1000
    with pytest.raises(UnknownNameError, match="memori"):
        show(read_arguments([*words, "memori"]))


def test_the_command_reads_a_database_of_umlaut(
    here: Path, store_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(here / "old.db", ROWS)
    store_file.rename(here / "old.dippm.db")
    show(read_arguments(["old.db", "-u", UUID, "-t", "memory", "time", "-p", "text"]))
    assert "bloat" in capsys.readouterr().out


def test_the_command_ends_as_others_do(here: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words, code, said in (
        (["none.db", "-u", UUID], 1, "there is no file none.db"),
        (["old.db"], 2, "give runs with -u"),
        (["old.db", "-p", "crayon"], 2, "invalid choice"),
    ):
        command = [sys.executable, "-m", "dippm.cli.umlaut", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_programs_of_both_names_are_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in ("umlaut-cli", "radt"):
        module, _, function = project["scripts"][name].partition(":")
        assert callable(getattr(import_module(module), function))
        extra = name.removesuffix("-cli")
        assert project["optional-dependencies"][extra] == ["dippm[track]"]


def test_radt_is_track(here: Path) -> None:
    command = [sys.executable, "-m", "dippm.radt", "-e", "night", "-w", "first", "true"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    (folder,) = (here / "spool").iterdir()
    from dippm.runs.store.folder import read_folder

    start = read_folder(folder).start
    assert (start.experiment, start.group) == ("night", "first")
