"""Journal and shards: what a crash can leave behind, and what a full disk does."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from dataset.collect.plans import pending_of
from dataset.collect.rows import PointOutcome, make_row
from dataset.collect.status import status
from dataset.families.family import Workload
from dataset.plan.configuration import Job, Point
from dippm.errors import DippmError
from dippm.measure.collected import DamagedRowsError, StorageError, kernels
from dippm.measure.collected import shards as shards_module
from dippm.measure.collected import store as store_module
from dippm.measure.collected.journal import Journal, encode, read_journal
from dippm.measure.collected.kernels import read_kernels
from dippm.measure.collected.rows import collected
from dippm.measure.collected.shards import arrow_schema, compact, read_shard, shards, write_shard
from dippm.measure.collected.store import Store, read_rows
from dippm.measure.columns import COLUMNS
from dippm.measure.kernels import TracedKernel

WORKLOAD = Workload("resnet", {"depth": 18, "block": "basic", "wide": True}, (224, 224))
MEASURED = {
    "latency_ms": 1.5,
    "latencies_ms": [1.25, 1.75],
    "warm_up_steps": 5,
    "warm_up_settled": True,
    "throttle_reasons": ["power cap"],
    "libraries": {"timm": "1.0"},
    "absent": {"energy_j": "no counter"},
}


def row(number: int, campaign: str = "c", status: str = "ok") -> dict:
    outcome = PointOutcome(Point(number + 1), status, "" if status == "ok" else "why", MEASURED)
    return make_row(campaign, "model", WORKLOAD, outcome)


def open_store(folder, **keywords) -> Store:
    folder.mkdir(exist_ok=True)
    said: list[str] = []
    store = Store(folder, say=said.append, wait_s=0.0, **keywords)
    store.said = said
    return store


def ids(folder) -> list[str]:
    return sorted(row["row_id"] for row in read_rows(folder))


def test_a_torn_last_line_is_moved_aside(tmp_path):
    path = tmp_path / "journal.jsonl"
    rows = [row(i) for i in range(3)]
    first = Journal(path)
    for each in rows:
        first.append(each)
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert len(read_journal(path)[0]) == 2
    again = Journal(path)
    assert (again.count, again.set_aside) == (2, 1)
    assert whole.startswith(path.read_bytes())
    torn = path.with_name("journal.jsonl.torn").read_bytes()
    assert torn.rstrip(b"\n") in whole
    again.append(rows[2])
    assert path.read_bytes() == whole
    again.close()


def test_a_torn_line_is_said_and_its_point_is_measured_again(tmp_path):
    store = open_store(tmp_path / "out")
    store.append(row(0))
    store.append(row(1))
    with (tmp_path / "out" / "journal.jsonl").open("ab") as file:
        file.write(b'{"row_id": "half')
    again = open_store(tmp_path / "out")
    assert (again.total, len(again.statuses)) == (2, 2)
    assert again.said == ["1 damaged lines were moved to journal.jsonl.torn"]


def test_a_point_that_was_disturbed_is_measured_again_until_it_was_three_times(tmp_path):
    """Others on the device at first; what is known once stays known, in journal and shards."""
    disturbed = {**MEASURED, "other_processes": 1, "throttle_reasons": []}
    alone = {**disturbed, "other_processes": 0}
    points = Point(1), Point(2), Point(4)
    job = Job(WORKLOAD, points)

    def start(campaign: str, **measured: dict) -> list[int]:
        """Measure what is pending; return its batches."""
        store = open_store(tmp_path)
        pending = [p for item in pending_of([job], store, retry_failed=False) for p in item.points]
        for point in pending:
            columns = measured.get(f"batch_{point.batch}", disturbed)
            outcome = PointOutcome(point, "ok", columns=columns)
            store.append(make_row(campaign, "model", WORKLOAD, outcome))
        store.close()
        return [point.batch for point in pending]

    assert start("first", batch_1=alone) == [1, 2, 4]
    assert start("second", batch_2=alone) == [2, 4]
    assert start("third") == [4]
    assert start("fourth") == [], "three times is enough"
    assert list(open_store(tmp_path).disturbed.values()) == [3]
    assert status(tmp_path)["labels"] == {
        "disturbed: other processes on the device": 4,
        "usable": 2,
    }


def test_zeroed_blocks_of_a_power_cut_are_moved_aside(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(row(0))
    journal.close()
    path.write_bytes(path.read_bytes() + bytes(4096) + b"\n[1]\n" + encode(row(1)))
    again = Journal(path)
    assert (again.count, again.set_aside) == (2, 2)
    assert [r["batch"] for r in again.rows()] == [1, 2]


def test_a_row_that_does_not_fit_leaves_the_journal_as_it_was(tmp_path):
    """A limit on the size of files, in a process of its own."""
    script = f"""
import resource, sys
sys.path.insert(0, {str(tmp_path.parent)!r})
from pathlib import Path
from dippm.measure.collected.journal import Journal, encode, read_journal
from dippm.measure.collected import StorageError
journal = Journal(Path({str(tmp_path / "journal.jsonl")!r}))
journal.append({{"row_id": "first"}})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
try:
    journal.append({{"row_id": "x" * 500}})
except StorageError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert [r["row_id"] for r in read_journal(journal.path)[0]] == ["first"], journal.path.read_bytes()
journal.append({{"row_id": "third"}})
assert [r["row_id"] for r in read_journal(journal.path)[0]] == ["first", "third"]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "journal.jsonl: File too large (a row of" in done.stdout
    assert "start the same command again" in done.stdout


def test_a_device_that_is_always_full(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._file)
    os.close(full)
    with pytest.raises(StorageError, match="No space left on device"):
        journal.append(row(0))
    assert journal.count == 0


def test_rows_survive_the_journey_to_parquet_unchanged(tmp_path):
    store = open_store(tmp_path)
    rows = [row(i, status="ok" if i % 3 else "oom") for i in range(7)]
    for item in rows:
        store.append(item)
    assert list(read_rows(tmp_path)) == rows
    store.close()
    assert [path.name for path in shards(tmp_path)] == ["shard-0000.parquet"]
    assert not (tmp_path / "journal.jsonl").exists()
    assert list(read_rows(tmp_path)) == rows
    table = collected(tmp_path).rows
    assert list(table["batch"]) == [r["batch"] for r in rows]
    assert table["throttle_reasons"][0] == ["power cap"]


def test_the_schema_is_that_of_the_columns():
    schema = arrow_schema()
    assert schema.names == [column.name for column in COLUMNS]
    kinds = {c.name: c.kind for c in COLUMNS}
    assert str(schema.field("latencies_ms").type) == "list<item: double>"
    assert str(schema.field("batch").type) == "int64"
    for field in schema:
        assert field.metadata[b"about"]
        assert (str(field.type) == "string") == (kinds[field.name] in ("text", "json"))


def test_shards_are_rolled_as_rows_come(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "SHARD_ROWS", 4)
    store = open_store(tmp_path)
    for i in range(10):
        store.append(row(i))
    assert [len(read_shard(path)) for path in shards(tmp_path)] == [4, 4]
    assert len(read_journal(tmp_path / "journal.jsonl")[0]) == 2
    assert len(ids(tmp_path)) == 10
    store.close()
    assert [len(read_shard(path)) for path in shards(tmp_path)] == [10]


def test_a_crash_between_shard_and_journal_neither_doubles_nor_loses(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    for i in range(6):
        store.append(row(i))
    before = ids(tmp_path)

    def crash(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "clear", crash)
    with pytest.raises(KeyboardInterrupt):
        store.roll()
    monkeypatch.undo()
    assert ids(tmp_path) == before
    again = open_store(tmp_path)
    assert again.total == 6
    assert read_journal(tmp_path / "journal.jsonl")[0] == []
    again.append(row(6))
    again.close()
    assert sum(len(read_shard(path)) for path in shards(tmp_path)) == 7


def test_a_crash_while_merging_neither_doubles_nor_loses(tmp_path, monkeypatch):
    for part in (range(3), range(3, 5)):
        write_shard(tmp_path, [row(i) for i in part])
    before = ids(tmp_path)
    monkeypatch.setattr(type(tmp_path), "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):  # noqa: PT011 - any
        compact(tmp_path, 100)
    monkeypatch.undo()
    assert len(shards(tmp_path)) == 3
    assert ids(tmp_path) == before
    compact(tmp_path, 100)
    assert sum(len(read_shard(path)) for path in shards(tmp_path)) == 5
    assert ids(tmp_path) == before


def test_large_shards_are_left_alone(tmp_path):
    for part in (range(4), range(4, 8), range(8, 10), range(10, 12)):
        write_shard(tmp_path, [row(i) for i in part])
    compact(tmp_path, 5)
    assert sorted(len(read_shard(path)) for path in shards(tmp_path)) == [4, 4, 4]


def test_without_pyarrow_shards_are_json_and_pack_makes_parquet_later(tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "has_pyarrow", lambda: False)
    store = open_store(tmp_path)
    rows = [row(i) for i in range(5)]
    for item in rows:
        store.append(item)
    store.close()
    assert [path.name for path in shards(tmp_path)] == ["shard-0000.jsonl.gz"]
    assert list(read_rows(tmp_path)) == rows
    assert open_store(tmp_path).total == 5
    assert list(collected(tmp_path).rows["row_id"]) == [r["row_id"] for r in rows]
    monkeypatch.undo()
    open_store(tmp_path).close()
    assert [path.suffix for path in shards(tmp_path)] == [".parquet"]
    assert list(read_rows(tmp_path)) == rows


def test_a_thousand_rows_are_at_most_a_few_megabytes(tmp_path):
    import random

    rng = random.Random(0)
    rows = []
    for i in range(1000):
        times = [rng.gauss(10, 1) for _ in range(30)]
        rows.append({**row(i), "latencies_ms": times, "events_ms": times[::-1]})
    path = write_shard(tmp_path, rows)
    assert path.stat().st_size < 2_000_000


@pytest.mark.parametrize("name", ["shard-0000.parquet", "shard-0000.jsonl.gz"])
def test_a_damaged_shard_is_said(tmp_path, name):
    content = gzip.compress(encode(row(0)))
    content = content[:30] + b"damage" + content[36:] if name.endswith("gz") else b"PAR1 no PAR1"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedRowsError, match=rf"{name} cannot be read"):
        open_store(tmp_path)
    with pytest.raises(DippmError, match=rf"{name} cannot be read"):
        collected(tmp_path)


def narrowed(content: bytes) -> bytes:
    """Return a Parquet file whose Arrow schema has integers of 4 bits in place of 64."""
    found = re.search(rb"ARROW:schema.{1,6}?([A-Za-z0-9+/]{60,}={0,2})", content, re.DOTALL)
    schema = base64.b64decode(found[1]).replace(b"\x40\0\0\0", b"\x04\0\0\0")
    return content[: found.start(1)] + base64.b64encode(schema) + content[found.end(1) :]


def parquet(columns: dict) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("shard-0000.parquet", lambda: narrowed(parquet({"row_id": ["a"], "batch": [1]}))),
        ("shard-0000.parquet", lambda: parquet({"row_id": ["a"], "libraries": [7]})),
        ("shard-0000.jsonl.gz", lambda: gzip.compress(b"7\n")),
        ("shard-0000.jsonl.gz", lambda: gzip.compress(b"[" * 100_000)),
    ],
)
def test_a_shard_of_something_else_is_said(tmp_path, name, content):
    (tmp_path / name).write_bytes(content())
    for columns in (None, ("row_id", "libraries")):
        with pytest.raises(DamagedRowsError, match=rf"{name} cannot be read"):
            read_shard(tmp_path / name, columns)
    with pytest.raises(DamagedRowsError, match=rf"{name} cannot be read"):
        collected(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("kernels-0000.parquet", lambda: narrowed(parquet({"row_id": ["a"], "ns": [1]}))),
        ("kernels-0000.jsonl.gz", lambda: gzip.compress(b"7\n")),
        ("kernels-0000.jsonl.gz", lambda: gzip.compress(b"[" * 100_000)),
    ],
)
def test_a_kernel_table_of_something_else_is_said(tmp_path, name, content):
    (tmp_path / name).write_bytes(content())
    with pytest.raises(DippmError, match=rf"{name} cannot be read"):
        read_kernels(tmp_path)


def test_a_line_of_the_journal_that_is_nested_too_deeply_is_left_out(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode(row(0)) + b"[" * 100_000 + b"\n")
    rows, damaged = read_journal(path)
    assert (len(rows), len(damaged)) == (1, 1)


def test_a_shard_that_cannot_be_written_leaves_its_rows_in_the_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "SHARD_ROWS", 2)
    store = open_store(tmp_path)
    (tmp_path / "shard-0000.parquet.part").mkdir()  # in the way
    for i in range(5):
        store.append(row(i))
    assert len(store.said) == 2  # at every second row, not at every one
    assert "the rows stay in journal.jsonl" in store.said[0]
    assert len(read_journal(tmp_path / "journal.jsonl")[0]) == 5
    (tmp_path / "shard-0000.parquet.part").rmdir()
    store.close()
    assert [path.name for path in shards(tmp_path)] == ["shard-0000.parquet"]
    assert len(ids(tmp_path)) == 5


def test_the_newest_try_counts_and_a_measurement_is_never_forgotten(tmp_path):
    store = open_store(tmp_path)
    first = row(0, "c1", "timeout")
    key = (first["configuration_id"], 0)
    store.append(first)
    assert store.statuses[key] == "timeout"
    store.append(row(0, "c2"))
    store.append(row(0, "c3", "crash"))
    assert store.statuses[key] == "ok"
    assert len(ids(tmp_path)) == 3


def test_identity_of_rows():
    point = Point(8)
    outcome = PointOutcome(point, "ok", columns=MEASURED)
    one = make_row("c1", "model", WORKLOAD, outcome)
    again = make_row("c1", "model", WORKLOAD, replace(outcome, point=replace(point, repeat=1)))
    other = make_row("c2", "model", WORKLOAD, outcome)
    assert one["configuration_id"] == again["configuration_id"] == other["configuration_id"]
    assert len({one["row_id"], again["row_id"], other["row_id"]}) == 3
    json.dumps(one, allow_nan=False)


KERNEL = TracedKernel("gemm", ("aten::linear",), (3,), "head", "forward", None, 0, 4250, (8, 1, 1))


def traced(number: int) -> dict:
    columns = {**MEASURED, "kernels": [replace(KERNEL, ns=number).to_dict(), KERNEL.to_dict()]}
    return make_row("c", "model", WORKLOAD, PointOutcome(Point(number + 1), "ok", "", columns))


@pytest.mark.parametrize("with_pyarrow", [True, False])
def test_kernel_tables_stand_beside_the_rows_from_journal_to_merged_shards(
    tmp_path, monkeypatch, with_pyarrow
):
    if not with_pyarrow:
        monkeypatch.setattr(shards_module, "has_pyarrow", bool)
        monkeypatch.setattr(kernels, "find_spec", lambda _: None)
    store = open_store(tmp_path)
    rows = [traced(1), row(9), traced(2), traced(3)]
    expected = {
        each["row_id"]: (replace(KERNEL, ns=number), KERNEL)
        for number, each in ((1, rows[0]), (2, rows[2]), (3, rows[3]))
    }
    for each in rows[:3]:
        store.append(each)
    assert len(read_kernels(tmp_path)) == 2, "read from the journal"
    store.roll()
    store.append(rows[3])
    store.roll()
    assert read_kernels(tmp_path) == expected
    store.close()
    assert len(list(tmp_path.glob("kernels-*"))) == len(shards(tmp_path)) == 1
    assert read_kernels(tmp_path) == expected
    assert all("kernels" not in each for each in read_rows(tmp_path))
    assert "kernels" not in collected(tmp_path).rows


def test_a_crash_between_tables_and_shard_loses_neither(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    store.append(traced(1))
    monkeypatch.setattr(shards_module, "_parquet", _full_disk)
    store.roll()
    assert list(tmp_path.glob("kernels-*")), "tables are written first"
    monkeypatch.undo()
    again = open_store(tmp_path)
    again.append(traced(2))
    again.close()
    assert len(read_kernels(tmp_path)) == len(ids(tmp_path)) == 2


def _full_disk(rows):
    raise OSError(28, "No space left on device")
