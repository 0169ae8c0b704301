"""The data set of D3.5 in small: parts that resume, labels by checkpoint, measured rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from dataset.d35 import graphs, labels, publish, table1
from dataset.d35.graphs import make, parts
from dataset.join.manifest import sha256_of_file
from dippm.errors import DippmError
from dippm.estimate.features import NODE_FEATURES
from dippm.estimate.pretrained import find

MODELS = {
    "vit": ["timm:test_vit2@160", "timm:test_vit3@160", "timm:test_vit@160"],
    "resnet": ["timm:test_resnet@160"],
}
WANTED = {"vit": 4, "resnet": 2}
BATCHES = (1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("d35")
    list(make(folder, WANTED, BATCHES, models_per_part=2, models=MODELS.__getitem__))
    return folder


def test_table_1_has_the_numbers_of_the_deliverable() -> None:
    assert sum(table1.GRAPHS.values()) == 10_508
    assert len(table1.GRAPHS) == 10


def test_models_of_a_family_are_distinct_and_zoo_and_own_take_turns() -> None:
    models = table1.models_of("densenet")
    assert len(set(models)) == len(models) > table1.GRAPHS["densenet"] / len(table1.BATCHES)
    assert models[0].startswith("own:densenet(")
    assert models[1] == "timm:densenet121@224"


def test_a_row_is_one_model_at_one_batch_with_its_features(folder: Path) -> None:
    rows = pd.concat(pd.read_parquet(part.path) for part in parts(folder))
    assert rows["family"].value_counts().to_dict() == WANTED
    assert rows["graph_id"].is_unique
    assert (rows["x"].map(len) == rows["nodes"] * NODE_FEATURES).all()
    assert (rows["operators"].map(len) == rows["nodes"]).all()
    assert all((row.edge_from < row.edge_to).all() for row in rows.itertuples()), "post-order"
    of_model = rows[rows["model"] == "timm:test_vit2@160"].set_index("batch")
    assert of_model.loc[2, "macs"] == 2 * of_model.loc[1, "macs"] > 0
    assert of_model["arch_id"].nunique() == 1


def test_a_second_call_makes_nothing_anew_and_goes_on(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "d35"
    shutil.copytree(folder, copy)
    before = {part.path: part.path.stat().st_mtime_ns for part in parts(copy)}
    more = {**WANTED, "vit": 6}
    done = list(make(copy, more, BATCHES, models_per_part=2, models=MODELS.__getitem__))
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    (new,) = (part for part in done if part.path not in before)
    assert new.rows == 2
    assert set(pd.read_parquet(new.path)["model"]) == {MODELS["vit"][2]}


def test_too_few_models_is_an_error_that_says_where_more_come_from(tmp_path: Path) -> None:
    with pytest.raises(DippmError, match="resnet has 2 of 9 graphs"):
        list(make(tmp_path, {"resnet": 9}, BATCHES, models=MODELS.__getitem__))


def test_parts_of_other_versions_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "VERSIONS", {**graphs.VERSIONS, "graph_version": "0"})
    with pytest.raises(DippmError, match="was made with"):
        parts(folder)


def test_batches_that_do_not_fit_are_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = next(graphs.graphs_of("timm:test_vit2@160", folder / graphs.RAW, (1,)))
    room = sum(node.bytes_written for node in one.nodes) + one.param_bytes
    monkeypatch.setattr(graphs, "CAPACITY_BYTES", room)
    fitting = graphs.graphs_of("timm:test_vit2@160", folder / graphs.RAW, (1, 64))
    assert [graph.batch for graph in fitting] == [1]


def test_labels_say_that_they_are_predicted_and_by_what(folder: Path) -> None:
    checkpoint = find()
    done = list(labels.label(folder, checkpoint))
    rows = pd.concat(pd.read_parquet(labelled.path) for labelled in done)
    assert rows["graph_id"].tolist() == [
        graph_id for part in parts(folder) for graph_id in pd.read_parquet(part.path)["graph_id"]
    ]
    assert (rows[list(labels.TARGETS)] > 0).all(axis=None)
    about = json.loads(pq.read_schema(done[0].path).metadata[b"d35"])
    assert about["provenance"] == "predicted, not measured"
    assert about["checkpoint"] == f"{checkpoint.name} {checkpoint.version}"
    again = list(labels.label(folder, checkpoint))
    assert all(labelled.seconds == 0 for labelled in again)


def test_no_graphs_is_an_error_that_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(DippmError) as error:
        list(labels.label(tmp_path, find()))
    assert "python -m dataset.d35.graphs" in error.value.hint


def test_datasheet_and_croissant_describe_every_file(folder: Path) -> None:
    list(labels.label(folder, find()))
    text, document = publish.datasheet(folder), publish.croissant(folder)
    assert "predicted, not measured" in text
    assert "6 of 10,508 graphs" in text
    described = {file["contentUrl"]: file["sha256"] for file in document["distribution"]}
    on_disk = {
        p.relative_to(folder).as_posix(): sha256_of_file(p) for p in folder.rglob("*.parquet")
    }
    assert described == on_disk
    assert len(document["recordSet"]) == len(on_disk)
    names = {field["name"].rpartition("/")[2] for field in document["recordSet"][0]["field"]}
    assert names == set(graphs.schema().names)
