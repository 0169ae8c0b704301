from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from dataset.cards import croissant, datasheet
from dataset.collected.rows import read
from dippm.errors import DippmError
from dippm.measure.collected.kernels import encode_tables
from dippm.measure.columns import COLUMNS, KERNEL
from dippm.measure.kernels import TracedKernel
from tests import collected_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset") / "data"
    collected_rows.write(folder / "toy", collected_rows.rows(), in_journal=0)
    (folder / "toy" / "journal.jsonl").unlink()
    kernel = TracedKernel("aten::add", ("aten::add",), (0,), "", "forward", None, 0, 1000)
    name = "kernels-0000.parquet"
    tables = {str(collected_rows.rows()[0]["row_id"]): [kernel.to_dict()]}
    (folder / "toy" / name).write_bytes(encode_tables(tables, name=name))
    return folder


def test_the_committed_datasheet_is_what_its_data_say() -> None:
    text = datasheet.README.read_text(encoding="utf-8")
    assert datasheet.rewrite_blocks(text) == text, "python -m dataset.datasheet --write"


def test_the_committed_croissant_file_is_what_its_data_say() -> None:
    text = croissant.FILE.read_text(encoding="utf-8")
    assert croissant.text_of(croissant.describe()) == text, "python -m dataset.croissant --write"


def test_every_column_is_in_the_datasheet_once() -> None:
    text = datasheet.column_tables()
    for column in COLUMNS:
        assert text.count(f"| `{column.name}` | {column.kind} |") == 1, column.name


def test_kernel_tables_have_the_columns_that_are_documented() -> None:
    names = [column.name for column in KERNEL]
    assert names == ["row_id", *(field.name for field in fields(TracedKernel))]


def test_every_block_has_a_maker_and_is_marked() -> None:
    text = datasheet.README.read_text(encoding="utf-8")
    assert [found["name"] for found in datasheet.BLOCK.finditer(text)] != []
    assert {found["name"] for found in datasheet.BLOCK.finditer(text)} == set(datasheet.BLOCKS)


def test_blocks_count_rows_failures_and_repeats(data: Path) -> None:
    n = len(collected_rows.rows())
    assert f"| {n} | {n - 5} | ok {n - 3}, oom 1, timeout 1, crash 1 |" in datasheet.sets(data)
    assert "| oom | CUDA out of memory" in datasheet.failures(data)
    assert "throttled (sw_thermal_slowdown)" in datasheet.failures(data)
    assert "| latency_ms | 4 | 16 |" in datasheet.noise(data)
    assert "| tinyconv | model | 32 | 32 | 5 |" in datasheet.families(data)


def test_without_data_the_blocks_say_so(tmp_path: Path) -> None:
    for block in (datasheet.sets, datasheet.families, datasheet.failures, datasheet.noise):
        assert block(tmp_path) == "No set is committed.\n"


def test_a_loader_reads_every_row_through_the_croissant_file(data: Path, tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    base = tmp_path / "dataset"
    shutil.copytree(data.parent, base)
    path = base / "croissant.json"
    path.write_text(croissant.text_of(croissant.describe(base / "data", base)), encoding="utf-8")
    described = mlcroissant.Dataset(jsonld=str(path))
    issues = described.metadata.ctx.issues
    assert not issues.errors
    assert not issues.warnings
    ids: dict[str, set[str]] = {"rows": set(), "kernels": set()}
    for records in described.metadata.record_sets:
        for record in described.records(records.uuid):
            found = {name.rpartition("/")[2]: value for name, value in record.items()}
            ids[records.uuid.partition(":")[0]].add(str(found["row_id"], "utf-8"))
    assert ids["rows"] == set(read(base / "data" / "toy")["row_id"])
    assert ids["kernels"] == {collected_rows.rows()[0]["row_id"]}


def test_shards_of_a_bare_machine_must_be_packed_first(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "shard-0000.jsonl.gz").write_bytes(b"")
    with pytest.raises(DippmError, match="pack"):
        croissant.describe(tmp_path, tmp_path)


def test_the_croissant_file_without_data_is_valid(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    path = tmp_path / "croissant.json"
    path.write_text(json.dumps(croissant.describe(tmp_path / "none", tmp_path)), encoding="utf-8")
    assert not mlcroissant.Dataset(jsonld=str(path)).metadata.ctx.issues.errors
