"""A database of UMLAUT becomes runs: all of it, as it was, once."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import sys
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dippm.errors import RunError
from dippm.runs.store.folder import read_folder
from dippm.umlaut import Benchmark
from dippm.umlaut.database import is_umlaut, read_database
from dippm.umlaut.importing import import_database
from dippm.umlaut.pickled import plain_pickle
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


def test_a_schema_with_a_name_that_is_no_text(here: Path) -> None:
    path = made(here / "x.db", [])
    content = path.read_bytes()
    at = content.index(b"tablebenchmark_metadata") + len("tablebenchmark_metad")
    path.write_bytes(content[:at] + b"\xff" * 9 + content[at + 9 :])  # over the end of the name
    with pytest.raises(RunError, match="damaged") as caught:
        read_database(path)
    assert caught.value.hint
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
    assert document["waiting"] == ""  # SQL alone attaches what it knows
    broken = CliRunner().invoke(app, ["import", "none.db"])
    assert broken.exit_code == 1


def read_back(value: Any, protocol: int, *, numpy_1: bool = False) -> Any:
    """Pickle a value and read it; NumPy 1 called the package of its functions `numpy.core`."""
    data = pickle.dumps(value, protocol)
    if numpy_1 and protocol < 4:  # names of other lengths are other opcodes since protocol 4
        data = data.replace(b"numpy._core.", b"numpy.core.")
    elif numpy_1:
        for name in (b"multiarray", b"numeric"):
            new, old = b"numpy._core." + name, b"numpy.core." + name
            data = data.replace(bytes([len(new)]) + new, bytes([len(old)]) + old)
    return plain_pickle(data)


def test_all_that_umlaut_pickled_is_read_of_every_protocol() -> None:
    shared = {"learning_rate": 0.5, "layers": 3}
    square = np.arange(6, dtype="i4").reshape(2, 3)
    values: list[tuple[Any, Any]] = [
        (6.526, 6.526),
        (-(2**40), -(2**40)),
        (True, True),
        (None, None),
        ("µJ ☃", "µJ ☃"),
        ([float("nan"), 1.0, float("inf")], [None, 1.0, None]),
        (
            {"timestamps": [BEGAN, BEGAN], "measurements": [1.5, 2], "interval": 1},
            {"timestamps": [BEGAN.isoformat()] * 2, "measurements": [1.5, 2], "interval": 1},
        ),
        (OrderedDict(a=1), {"a": 1}),
        ({1: (2, 3), None: []}, {"1": [2, 3], "None": []}),
        ([shared, shared], [shared, shared]),
        (BEGAN.replace(fold=1), BEGAN.isoformat()),
        (np.float64(0.25), 0.25),
        (np.float32(0.25), 0.25),
        (np.int64(-7), -7),
        (np.bool_(True), True),
        (np.str_("ab"), "ab"),
        (
            {"matrix": square, "labels": np.array(["a", "bcd"])},
            {"matrix": [[0, 1, 2], [3, 4, 5]], "labels": ["a", "bcd"]},
        ),
        (square.T, [[0, 3], [1, 4], [2, 5]]),
        (np.asfortranarray(square), square.tolist()),
        (np.arange(24.0).reshape(2, 3, 4, order="F"), None),
        (np.array(3.5), 3.5),
        (np.array([]), []),
        (np.array([1.5], dtype=">f8"), [1.5]),
        (np.array([True, False]), [True, False]),
        (np.array(["a", None, BEGAN], dtype=object), ["a", None, BEGAN.isoformat()]),
        ([np.float64(1), np.float64(2)], [1.0, 2.0]),
        (list(range(100_000)), list(range(100_000))),
    ]
    for value, plain in values:
        expected = value.tolist() if plain is None and value is not None else plain
        for protocol in range(6):
            for numpy_1 in (False, True):
                found = read_back(value, protocol, numpy_1=numpy_1)
                assert found == expected, (value, protocol, numpy_1)
                assert type(found) is type(expected)


def test_pickles_of_anything_else_are_refused() -> None:
    """No name of a pickle is ever imported, and no state of it reaches NumPy."""

    class Dtype:
        """A dtype whose state says that its eight bytes are an object, or that it has fields."""

        def __init__(self, code: str, *state: Any) -> None:
            self.code, self.state = code, state

        def __reduce__(self) -> Any:
            return (np.dtype, (self.code, False, True), self.state)

    def scalar(dtype: Any, data: bytes) -> Any:
        class Scalar:
            def __reduce__(self) -> Any:
                return (np.float64(0).__reduce__()[0], (dtype, data))

        return Scalar()

    def array(dtype: Any, shape: Any, data: Any) -> Any:
        class Array:
            def __reduce__(self) -> Any:
                make, about = np.zeros(1).__reduce__()[:2]
                return (make, about, (1, shape, dtype, False, data))

        return Array()

    def call(function: Any, *words: Any) -> Any:
        class Call:
            def __reduce__(self) -> Any:
                return (function, words)

        return Call()

    address = (4096).to_bytes(8, "little")
    fields = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 8, 63)
    far = (3, "|", None, ("a",), {"a": (np.dtype("u1"), 1 << 20)}, 8, 8, 0)
    held: list[Any] = [[1]]
    held.append(held)
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    bomb: list[Any] = [0] * 10
    for _ in range(10):
        bomb = [bomb] * 10
    words: Any = "x" * 10_000
    refused = {
        "an object at an address": scalar(
            Dtype("O8", 3, "|", None, None, None, -1, -1, 63), address
        ),
        "a number that is an object": scalar(
            Dtype("f8", 3, "|", None, None, None, -1, -1, 63), b""
        ),
        "objects in a record": scalar(Dtype("V8", *fields), address),
        "a field out of reach": scalar(Dtype("V8", *far), address),
        "fields of a number": array(Dtype("f8", *far), (1,), address),
        "objects in bytes": array(Dtype("O8", 3, "|", None, None, None, -1, -1, 63), (1,), address),
        "a wrong size": scalar(Dtype("u1", 3, "|", None, None, None, 64, -1, 0), b"x" * 64),
        "a text of a wrong size": scalar(
            Dtype("U2", 3, "<", None, None, None, 800, 4, 8), b"x" * 8
        ),
        "bytes of nobody": call(np.ndarray, (64,), "u1"),
        "fewer bytes than its shape": array(np.dtype("f8"), (1 << 40,), address),
        "a negative size": array(np.dtype("f8"), (-1, -1), address),
        "empty rows without end": array(np.dtype("f8"), (1 << 40, 0, 1.5), b""),
        "dates": np.array(["2024-01-01"], dtype="M8[D]"),
        "complex numbers": np.complex128(1j),
        "records": np.zeros(1, dtype=[("a", "f8")]),
        "a name": os.system,
        "a call": call(os.system, "touch harm"),
        "a call of a builtin": call(eval, "1"),
        "a class": datetime,
        "a function of ours": [np.dtype],
        "a time zone": BEGAN.replace(tzinfo=UTC),
        "bytes": b"abc",
        "a set": {1},
        "an object": Path("x"),
        "itself": held,
        "levels": deep,
        "a list of lists of lists of the same": bomb,
        "a text again and again": [words] * 100_000,
        "a number larger than any": 10**400,
        "a key that is a list": {(1, 2): 3},
    }
    for what, value in refused.items():
        for protocol in range(6):
            with pytest.raises(ValueError, match="its pickle is refused"):
                pytest.fail(
                    f"{what}, protocol {protocol}: {plain_pickle(pickle.dumps(value, protocol))}"
                )
    for damaged in (b"", b"\x80", b"\x80\x04", b"\x80\x04.", b"N", b"N0.", b"t.", b"(.", b"h\0."):
        with pytest.raises(ValueError, match="its pickle is refused"):
            plain_pickle(damaged)


def test_the_same_bytes_are_not_read_again_and_again() -> None:
    """Five bytes that encode a text of a million characters, 100,000 times: 100 GB."""
    text = b"X" + (10**6).to_bytes(4, "little") + b"x" * 10**6
    maker, words = b"c_codecs\nencode\nq\x00", text + b"X\x06\0\0\0latin1\x86q\x01"
    with pytest.raises(ValueError, match="it makes more than it holds"):
        plain_pickle(b"(" + maker + words + 100_000 * b"h\x00h\x01R" + b"l.")


def test_one_bad_row_is_one_note(here: Path) -> None:
    """Each of these has cost the whole import, or memory without bound, or a traceback."""
    bomb: list[Any] = [0] * 10
    for _ in range(9):
        bomb = [bomb] * 10
    cells: dict[str, Any] = {
        "too deep": "[" * 200_000,
        "deeper than 64": "[" * 500 + "]" * 500,
        "more values than": pickle.dumps(bomb),
        "no value": "NaN",
        "its time is": "1e300",
        "10,000,000 characters": b"9" * 10_000_000,
        "its JSON is damaged": '{"a": [1, 2',
        "too large": b"[" + b"9" * 400 + b"]",
        "its pickle is refused": pickle.dumps(os.system, 0),
        "a text of it has 200,000": '"' + "x" * 200_000 + '"',
    }
    path = made(here / "old.db", ROWS[:2])
    with sqlite3.connect(path) as connection:
        insert = "INSERT INTO measurement VALUES (?, ?, ?, 'bad', 'time', ?, 's', 'f')"
        for number, cell in enumerate(cells.values(), 10):
            connection.execute(insert, (number, UUID, str(BEGAN), cell))
        odd = {"timestamps": 5, "measurements": None}
        connection.execute(insert, (50, UUID, "0001-01-01 00:00:00", json.dumps(odd)))
        long = "INSERT INTO measurement VALUES (60, ?, '', ?, 'time', '1', 's', 'f')"
        connection.execute(long, (UUID, "x" * 100_000))
    connection.close()
    database = read_database(path)
    notes = database.notes
    for number, reason in enumerate(cells, 10):
        assert any(note.startswith(f"measurement {number} ") for note in notes), (reason, notes)
    for reason in [*cells, "a text of it has 100,000 characters"]:
        assert any(reason in note for note in notes), (reason, notes)
    assert max(map(len, notes)) < 200
    imported = import_database(path)
    assert imported.measurements == 3
    assert [row.value for row in rows_of_folder(imported.folders[0]) if row.value] == [
        200.25,
        0.3125,
    ]


def test_a_database_that_makes_rows_of_nothing(here: Path) -> None:
    """Rows that no page holds: of a view, a default, a page that stands there many times."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    view = made(here / "view.db", [])
    with sqlite3.connect(view) as connection:
        connection.execute("DROP TABLE measurement")
        connection.execute(f"CREATE VIEW measurement AS {numbers} SELECT i AS id FROM n")
    connection.close()
    with pytest.raises(RunError, match="no table measurement"):
        read_database(view)
    default = made(here / "default.db", [(UUID, 1, "d", "time", 1.5, "sec", "f")] * 5000)
    with sqlite3.connect(default) as connection:
        connection.execute("ALTER TABLE measurement DROP COLUMN measurement_unit")
        text = "x" * 900_000
        connection.execute(f"ALTER TABLE measurement ADD COLUMN measurement_unit DEFAULT '{text}'")
    connection.close()
    database = read_database(default)  # 4.5 GB of text
    assert any("damaged" in note for note in database.notes)
    rows = [(UUID, n / 10, f"{n} " + "x" * 500, "time", n / 8, "sec", "f") for n in range(2000)]
    loop = made(here / "loop.db", rows)
    whole = bytearray(loop.read_bytes())
    interior = [n for n in range(0, len(whole), 4096) if whole[n] == 5 and n]
    for page in interior:  # every child of the root is the first one
        cells = int.from_bytes(whole[page + 3 : page + 5], "big")
        places = [int.from_bytes(whole[page + 12 + 2 * n :][:2], "big") for n in range(cells)]
        for place in places:
            whole[page + place : page + place + 4] = whole[page + places[0] : page + places[0] + 4]
    loop.write_bytes(whole)
    database = read_database(loop)
    assert interior
    assert len(database.measurements) < 2000


def test_a_folder_or_a_pipe_is_no_database(here: Path) -> None:
    os.mkfifo(here / "pipe")
    for path in (here, here / "pipe", here / "nothing", Path("/dev/zero")):
        with pytest.raises(RunError, match=r"cannot be read|is no file"):
            read_database(path)


def test_a_second_store_gets_the_runs_too(here: Path) -> None:
    """Each store holds every run once, and the command says what it did."""
    from dippm.cli.app import app
    from dippm.runs.store.runs import open_store

    made(here / "old.db")
    said = []
    for store in ("a.db", "b.db", "b.db", "a.db"):
        answer = CliRunner().invoke(app, ["import", "old.db", "--store", store])
        assert answer.exit_code == 0, answer.output
        said.append(answer.output)
    assert "2 runs with 7 measurements imported" in said[0]
    assert "2 runs were imported before, 2 of them are new in this store" in said[1]
    assert "new in this store" not in said[2]
    for store in ("a.db", "b.db"):
        runs = open_store(store).runs(limit=10)
        assert sorted(run.uuid for run in runs) == sorted(u.replace("-", "") for u in (UUID, OTHER))


def test_values_of_one_description_and_two_types_stay_apart(here: Path) -> None:
    rows: list[Row] = [
        (UUID, 1.0, "queue", "lengths", [1, 2], "n", "serve"),
        (UUID, 2.0, "queue", "ages", [3, 4], "s", "serve"),
    ]
    imported = import_database(made(here / "old.db", rows))
    found = [row for folder in imported.folders for row in rows_of_folder(folder)]
    assert [(row.measure_type, row.description, row.data) for row in found] == [
        ("lengths", "queue", [1, 2]),
        ("ages", "queue", [3, 4]),
    ]
    names = [value.name for value in read_folder(imported.folders[0]).values]
    assert len(set(names)) == 2
