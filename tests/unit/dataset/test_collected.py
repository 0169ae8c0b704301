from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from dataset.collected.exclusions import exclusions
from dataset.collected.join import build
from dataset.collected.rows import as_table, read
from dataset.join import raw_graphs
from dataset.join.splits import Split
from dataset.measured.table import COLUMNS as COMMON
from dippm.errors import DippmError
from dippm.measure.collected import RowsNotFoundError
from dippm.measure.collected.labels import noise_floor
from dippm.measure.collected.rows import collected
from dippm.measure.columns import COLUMNS
from tests import collected_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collected_rows.write(tmp_path_factory.mktemp("data") / "toy", collected_rows.rows())


@pytest.fixture(scope="module")
def built(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    graphs = tmp_path_factory.mktemp("graphs")
    collected_rows.write_graphs(graphs)
    out = tmp_path_factory.mktemp("out")
    return out, build(folder, graphs, out, workers=1)


def test_every_row_is_read_once_and_a_cut_line_is_said(folder: Path) -> None:
    found = collected(folder)
    assert list(found.rows.columns) == [column.name for column in COLUMNS]
    assert sorted(found.rows["row_id"]) == sorted(row["row_id"] for row in collected_rows.rows())
    assert found.files == ("shard-0000.parquet", "shard-0001.parquet", "journal.jsonl")
    assert found.notes == ("1 broken lines of the journal were left out",)
    assert found.campaigns[0]["campaign"] == "c1"


def test_values_come_back_as_they_were_measured(folder: Path) -> None:
    rows = read(folder).set_index("row_id")
    for written in collected_rows.rows():
        row = rows.loc[written["row_id"]]
        assert row["parameters"] == written["parameters"]
        assert row["absent"] == written["absent"]
        assert row["reason"] == written["reason"]
        if written["status"] == "ok":
            assert row["latency_ms"] == written["latency_ms"]
            assert list(row["latencies_ms"]) == written["latencies_ms"]
        else:
            assert pd.isna(row["latency_ms"])


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(RowsNotFoundError, match=r"dataset\.collect"):
        read(tmp_path)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    collected_rows.write(tmp_path, collected_rows.rows())
    (tmp_path / "shard-0001.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DippmError, match=r"shard-0001\.parquet"):
        read(tmp_path)


def test_rows_of_a_newer_schema_are_refused(tmp_path: Path) -> None:
    records = [record | {"schema_version": 99} for record in collected_rows.rows()]
    with pytest.raises(DippmError, match="schema 99"):
        read(collected_rows.write(tmp_path, records))


def test_what_is_no_label_has_a_reason(folder: Path) -> None:
    rows = read(folder)
    reasons = exclusions(rows)
    assert reasons.value_counts().to_dict() == {
        "repeat of a configuration: for the noise floor only": 12,
        "oom": 1,
        "timeout": 1,
        "crash": 1,
        "disturbed: other processes on the device": 1,
        "disturbed: throttled (sw_thermal_slowdown)": 1,
    }
    kept = rows[reasons.isna()]
    assert not kept.duplicated(["configuration_id", "device"]).any()
    assert ["sw_power_cap"] in kept["throttle_reasons"].tolist()


def test_it_reads_like_every_other_source(folder: Path) -> None:
    rows = read(folder)
    table = as_table(rows[exclusions(rows).isna()], "own/toy")
    assert list(table.columns[: len(COMMON)]) == list(COMMON)
    assert set(table["source"]) == {"own/toy"}
    assert set(table["timer"]) == {"W"}
    assert table["row_id"].is_unique
    assert {"energy_j", "latencies_ms", "campaign"} <= set(table.columns)
    assert table[table["model"].isna()]["operator"].tolist() == ["dense"]


def test_the_noise_floor_says_how_many_repeats_and_days(folder: Path) -> None:
    floors, absent = noise_floor(read(folder))
    latency = next(f for f in floors if (f.target, f.family) == ("latency_ms", "all"))
    assert (latency.configurations, latency.rows) == (4, 16)
    assert (latency.days, latency.campaigns) == (3, 3)
    assert 0.1 < latency.median_percent < 3
    assert {f.family for f in floors} == {"all", "tinyconv"}
    assert absent == {}


def test_without_repeats_or_labels_the_noise_floor_is_absent_with_a_reason() -> None:
    from dippm.measure.collected.rows import frame

    single = [row for row in collected_rows.rows(energy=False) if row["repeat"] == 0]
    floors, absent = noise_floor(frame(single))
    assert floors == []
    assert absent == {
        "latency_ms": "no configuration was measured twice",
        "energy_j": "no row has it",
        "memory_mb": "no configuration was measured twice",
    }


def test_rows_meet_their_graphs(built: tuple[Path, dict]) -> None:
    out, manifest = built
    table = pd.read_parquet(out / "rows.parquet")
    assert len(table) == manifest["rows_joined"] == 61
    assert set(table["family_id"]) == set(collected_rows.FAMILIES)
    assert table["arch_id"].nunique() == 15
    assert (table["macs_per_sample"] > 0).all()
    graphs = json.loads((out / "graphs.json").read_text())
    assert all(Path(graphs[model]).is_file() for model in table["model"])


def test_the_manifest_accounts_for_every_row(built: tuple[Path, dict]) -> None:
    _, manifest = built
    left_out = sum(excluded["rows"] for excluded in manifest["excluded"])
    joined = manifest["rows_joined"] + manifest["rows_of_operators"]
    assert manifest["rows"] == left_out + joined
    assert {f["status"] for f in manifest["failures"]} == {"oom", "timeout", "crash"}
    assert len(manifest["files"]) == 2


def test_no_architecture_sits_on_two_sides(built: tuple[Path, dict]) -> None:
    out, _ = built
    table = pd.read_parquet(out / "rows.parquet").set_index("row_id")
    for name in ("S1", "S2", "S2-5"):
        split = Split.load(out / "splits" / "inference" / f"{name}.json")
        for fold in split.folds:
            train = set(table.loc[split.train(fold), "arch_id"])
            test = set(table.loc[list(fold.test), "arch_id"])
            assert train
            assert test
            assert not train & test


def test_models_without_a_graph_are_counted(folder: Path, tmp_path: Path) -> None:
    graphs = tmp_path / "graphs"
    collected_rows.write_graphs(graphs)
    gone = collected_rows.workload("tinymlp", 8).model
    path = raw_graphs.path_of(gone, graphs)
    path.unlink()
    raw_graphs.error_path_of(gone, graphs).write_text("ValueError: cannot be traced")
    manifest = build(folder, graphs, tmp_path / "out", workers=1)
    assert {"reason": "no graph", "rows": 5} in manifest["excluded"]
    assert "cannot be traced" in manifest["models_without_graph"][gone]


@pytest.mark.parametrize("kept", ["operator", "oom"])
def test_a_set_without_a_usable_model_is_joined_to_nothing(tmp_path: Path, kept: str) -> None:
    """A campaign can end amid the operator pack, or fail throughout."""
    rows = [row for row in collected_rows.rows() if kept in (row["kind"], row["status"])]
    folder = collected_rows.write(tmp_path / "toy", rows, in_journal=0)
    manifest = build(folder, tmp_path / "graphs", tmp_path / "out", workers=1)
    assert manifest["rows_joined"] == 0
    assert manifest["splits"] == []
    assert (tmp_path / "out" / "rows.parquet").is_file()
