"""A database of UMLAUT becomes runs: all of it, as it was, once."""

from __future__ import annotations

import json
import pickle
import sqlite3
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dippm.errors import RunError
from dippm.store.folder import read_folder
from dippm.umlaut import Benchmark
from dippm.umlaut.database import is_umlaut, read_database
from dippm.umlaut.importing import import_database
from dippm.umlaut.rows import rows_of_folder

UUID = "55077e71-c330-424a-b01d-94921a3c666a"
OTHER = "871dd01b-6564-4c62-bba2-7212459587b2"
BEGAN = datetime(2024, 8, 13, 9, 18, 33, 309111)
SCHEMA = """
CREATE TABLE benchmark_metadata (
  uuid VARCHAR PRIMARY KEY, meta_description VARCHAR, meta_name VARCHAR, meta_start_time DATETIME);
CREATE TABLE measurement (
  id INTEGER PRIMARY KEY, uuid VARCHAR REFERENCES benchmark_metadata (uuid),
  measurement_datetime DATETIME, measurement_description VARCHAR NOT NULL,
  measurement_type VARCHAR, measurement_data JSON, measurement_unit VARCHAR,
  measured_method_name VARCHAR);
"""
TIMES = [str(BEGAN + timedelta(seconds=second)) for second in (1, 1.1, 1.2)]
MEMORY = [100.5, 200.25, 150.0]
Row = tuple[str, float, str, str, Any, str, str]
ROWS: list[Row] = [
    (UUID, 1.3, "mem", "memory", {"timestamps": TIMES, "measurements": MEMORY}, "MiB", "bloat"),
    (UUID, 1.3, "time", "time", 0.3125, "sec", "bloat"),
    (UUID, 2.0, "time", "time", 0.25, "sec", "bloat"),
    (UUID, 2.5, "latency\n (#Entries = 4)", "latency", 0.0625, "Seconds/entry", "infer"),
    (UUID, 3.0, "matrix", "confusion-matrix", {"matrix": [[1, 2]], "labels": ["a"]}, "", ""),
    (UUID, 4.0, "loss", "loss", [0.5, 0.25], "loss", ""),
    (OTHER, 9.0, "energy", "energy", 123456.0, "µJ", "train"),
]


def made(path: Path, rows: Iterable[Row] = ROWS, *, nested: bool = True) -> Path:
    """Write a database as UMLAUT does; it put JSON of a series into a JSON column once more."""
    with sqlite3.connect(path) as connection:
        connection.executescript(SCHEMA)
        about = [(UUID, "sample", "main.py", str(BEGAN)), (OTHER, "", "other.py", str(BEGAN))]
        connection.executemany("INSERT INTO benchmark_metadata VALUES (?, ?, ?, ?)", about)
        for uuid, after_s, description, kind, data, unit, method in rows:
            text = data if isinstance(data, bytes) else json.dumps(data)
            if nested and isinstance(data, dict):
                text = json.dumps(text)
            at = str(BEGAN + timedelta(seconds=after_s))
            connection.execute(
                "INSERT INTO measurement VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
                (uuid, at, description, kind, text, unit, method),
            )
    connection.close()
    return path


@pytest.mark.parametrize("nested", [True, False])
def test_everything_arrives_as_it_was(here: Path, nested: bool) -> None:
    imported = import_database(made(here / "old.db", nested=nested))
    assert (len(imported.folders), imported.measurements, imported.notes) == (2, len(ROWS), ())
    recorded = read_folder(imported.folders[0])
    start = recorded.start
    assert (start.uuid, start.name, start.description) == (
        UUID.replace("-", ""),
        "main.py",
        "sample",
    )
    assert start.at.wall_ns == int(BEGAN.replace(microsecond=0).timestamp()) * 10**9 + 309111000
    rows = rows_of_folder(imported.folders[0])
    found = [(row.method_name, row.measure_type, row.value, row.unit) for row in rows]
    assert sorted(found[:4], key=str) == [
        ("bloat", "memory", 200.25, "MiB"),
        ("bloat", "memory", None, "MiB"),
        ("bloat", "time", 0.25, "sec"),
        ("bloat", "time", 0.3125, "sec"),
    ]
    assert found[4] == ("infer", "latency", 0.0625, "Seconds/entry")
    memory = next(row for row in rows if row.series)
    assert [value for _, value in memory.series] == MEMORY
    began = [memory.start_s + at for at, _ in memory.series]
    assert began == pytest.approx([1, 1.1, 1.2], abs=1e-6)
    assert [row.data for row in rows[5:]] == [{"matrix": [[1, 2]], "labels": ["a"]}, [0.5, 0.25]]
    assert [row.start_s for row in rows[5:]] == pytest.approx([3, 4], abs=1e-6)


def test_the_database_is_not_touched_and_runs_are_imported_once(here: Path) -> None:
    path = made(here / "old.db")
    path.chmod(0o444)
    before = path.read_bytes()
    import_database(path)
    again = import_database(path)
    assert (again.folders, len(again.already)) == ((), 2)
    assert path.read_bytes() == before
    assert {entry.name for entry in here.iterdir()} == {"old.db", "spool"}


def test_a_benchmark_does_not_write_to_a_database_of_umlaut(here: Path) -> None:
    path = made(here / "old.db")
    before = path.read_bytes()
    benchmark = Benchmark("old.db", mode="w")
    benchmark.close()
    assert benchmark.store == f"sqlite:///{here / 'old.dippm.db'}"
    assert path.read_bytes() == before
    assert is_umlaut(path)


def test_damaged_pages_lose_only_their_rows(here: Path) -> None:
    rows = [(UUID, n / 10, f"{n} " + "x" * 500, "time", n / 8, "sec", "f") for n in range(200)]
    path = made(here / "old.db", rows)
    whole = bytearray(path.read_bytes())
    assert len(whole) > 20 * 4096
    whole[12 * 4096 : 13 * 4096] = b"\xff" * 4096
    path.write_bytes(whole)
    imported = import_database(path)
    kept = [row.value for row in rows_of_folder(imported.folders[0])]
    assert 150 < len(kept) < 200
    assert {value for value in kept if value is not None} <= {n / 8 for n in range(200)}
    assert "damaged" in imported.notes[0]
    assert str(imported.measurements) in imported.notes[0]


def test_a_truncated_database_keeps_its_beginning(here: Path) -> None:
    rows = [(UUID, n / 10, f"{n} " + "x" * 500, "time", n / 8, "sec", "f") for n in range(200)]
    path = made(here / "old.db", rows)
    path.write_bytes(path.read_bytes()[: 15 * 4096])
    assert 10 < import_database(path).measurements < 200


@pytest.mark.parametrize(
    "content", [b"", b"no database", b"SQLite format 3\x00" + b"\xff" * 4096], ids=repr
)
def test_what_is_no_database_is_said(here: Path, content: bytes) -> None:
    path = here / "x.db"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"x\.db"):
        read_database(path)
    assert not is_umlaut(path)


def test_another_database_is_said(here: Path) -> None:
    with sqlite3.connect(here / "x.db") as connection:
        connection.execute("CREATE TABLE runs (id)")
    with pytest.raises(RunError, match="no table benchmark_metadata or measurement"):
        read_database(here / "x.db")


def test_old_pickles_are_read_and_run_nothing(here: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return (Path.touch, (here / "harm",))

    data = {"timestamps": [BEGAN], "measurements": [5.0]}
    rows: list[Row] = [
        (UUID, 1, "mem", "memory", pickle.dumps(data), "MiB", "f"),
        (UUID, 2, "harm", "loss", pickle.dumps(Harm()), "", ""),
    ]
    database = read_database(made(here / "old.db", rows))
    assert [row.data["measurements"] for row in database.measurements] == [[5.0]]
    assert "measurement 2 cannot be read" in database.notes[0]
    assert not (here / "harm").exists()


def test_the_command_says_what_it_did(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dippm.cli.app import app

    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    made(here / "old.db")
    answer = CliRunner().invoke(app, ["import", "old.db", "--json"])
    assert answer.exit_code == 0
    document = json.loads(answer.output)
    assert (len(document["runs"]), document["measurements"]) == (2, len(ROWS))
    assert "dippm[track]" in document["waiting"]
    broken = CliRunner().invoke(app, ["import", "none.db"])
    assert broken.exit_code == 1
