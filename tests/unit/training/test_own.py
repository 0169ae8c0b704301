from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import dippm
from dataset.collected import join
from dataset.join import raw_graphs
from dippm.errors import ConditionsError, UnknownNameError
from dippm.estimate.models.pmgns_network import PmgnsConfig
from dippm.model.graph import build
from tests import collected_rows
from training.evaluation.held_out import HeldOut
from training.pmgns import report
from training.pmgns.selection import (
    load_selection,
    restricted,
    select,
    some_architectures,
    told_apart,
)
from training.pmgns.train_own import _split, train_own
from training.pmgns.trainer import TrainingConfig

TRAINING = TrainingConfig(epochs=2, batch_size=16, learning_rate=5e-3, bfloat16=False)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    collected_rows.write_graphs(folder)
    return folder


@pytest.fixture(scope="module")
def joined(graphs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A joined made-up set of the catalogue's CPU, without energy."""
    records = [row | {"device": "AMD EPYC"} for row in collected_rows.rows(energy=False)]
    folder = collected_rows.write(tmp_path_factory.mktemp("data") / "toy", records)
    out = tmp_path_factory.mktemp("joined") / "toy"
    join.build(folder, graphs, out, workers=1)
    return out


@pytest.fixture(scope="module")
def checkpoint(
    joined: Path, tmp_path_factory: pytest.TempPathFactory
) -> dippm.pretrained.Checkpoint:
    out = tmp_path_factory.mktemp("checkpoints") / "pmgns-toy" / "0.1.0"
    selection = load_selection(joined)
    network = PmgnsConfig.variant("paper", hidden=16, targets=selection.targets)
    return train_own(
        joined, out, selection=selection, network=network, training=TRAINING,
        splits=["S0", "S2"], others=["mlp"], runs=out.parent / "runs",
    )  # fmt: skip


def test_only_rows_of_one_set_of_conditions_are_chosen(joined: Path) -> None:
    table = pd.read_parquet(joined / "rows.parquet")
    other = table.head(3).assign(precision="bf16", row_id=["a", "b", "c"])
    chosen = select(pd.concat([table, other], ignore_index=True))
    assert chosen.conditions["precision"] == "fp32"
    assert chosen.left_out == {"other precision": 3}
    assert chosen.targets == ("memory_mb", "latency_ms")
    assert chosen.absent == {"energy_j": "made up without it"}
    asked = select(pd.concat([table, other], ignore_index=True), precision="bf16")
    assert set(asked.rows["row_id"]) == {"a", "b", "c"}


def test_a_condition_that_no_row_has_is_said(joined: Path) -> None:
    with pytest.raises(FileNotFoundError, match="precision fp16"):
        load_selection(joined, precision="fp16")


def test_a_set_without_models_cannot_train_and_says_so(joined: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no row of a model"):
        select(pd.read_parquet(joined / "rows.parquet").iloc[:0])


@pytest.mark.parametrize("name", ["S1", "S2", "S2-5"])
def test_restricted_folds_hold_out_architectures_and_can_stop_early(
    joined: Path, name: str
) -> None:
    selection = load_selection(joined)
    rows = selection.rows.set_index("row_id")
    split = _split(joined, name, selection)
    assert split.folds
    for fold in split.folds:
        parts = [split.train(fold), list(fold.validation), list(fold.test)]
        architectures = [set(rows.loc[part, "arch_id"]) for part in parts]
        assert all(architectures)
        assert not architectures[0] & architectures[1]
        assert not architectures[2] & (architectures[0] | architectures[1])


def test_restricting_drops_other_rows(joined: Path) -> None:
    selection = load_selection(joined)
    few = selection.rows.iloc[::2]
    split = restricted(_split(joined, "S0", selection), few)
    assert set(split.rows) == set(few["row_id"])
    assert all(set(fold.test) <= set(few["row_id"]) for fold in split.folds)


def test_some_architectures_are_whole_and_about_a_tenth(joined: Path) -> None:
    rows = load_selection(joined).rows
    taken = set(some_architectures(rows, 1))
    held = rows[rows["row_id"].isin(taken)]["arch_id"].unique()
    assert taken == set(rows["row_id"][rows["arch_id"].isin(held)])
    assert 0 < len(taken) < 0.25 * len(rows)


def test_errors_have_counts_and_an_interval_over_architectures() -> None:
    rows = pd.DataFrame(
        {
            "arch_id": ["a", "a", "b", "c"],
            "family_id": ["f", "f", "f", "g"],
            "latency_ms": [1.0, 2.0, 4.0, None],
            "predicted latency_ms": [1.1, 2.2, 2.0, 9.0],
        }
    )
    found = report.errors_of(HeldOut("x", "S1", rows, 0.0), "latency_ms")
    assert found is not None
    assert (found["n"], found["architectures"], found["families"]) == (3, 2, 1)
    assert found["mape"] == pytest.approx(23.33)
    assert found["mape_ci95"] == "10.0 to 50.0"


def test_every_predictor_is_in_the_metrics(checkpoint: dippm.pretrained.Checkpoint) -> None:
    rows = checkpoint.metrics["all predictors on the same rows and folds, percent"]
    assert {row["predictor"] for row in rows} == {
        "GraphSAGE", "MLP", "median label", "FLOPs-proportional", "nearest neighbour",
        "ridge on totals", "boosted trees on totals",
    }  # fmt: skip
    assert {(row["split"], row["target"]) for row in checkpoint.metrics["summary"]} == {
        (split, target) for split in ("S0", "S2") for target in ("memory_mb", "latency_ms")
    }
    tested = {row["split"]: row["n"] for row in checkpoint.metrics["summary"]}
    assert tested["S2"] == 61
    card = (checkpoint.path / "README.md").read_text()
    assert "made up without it" in card
    assert "S2: one fold for each family" in card


def test_boosted_trees_learn_the_made_up_law(checkpoint: dippm.pretrained.Checkpoint) -> None:
    rows = checkpoint.metrics["all predictors on the same rows and folds, percent"]
    found = {
        row["predictor"]: row["mape"]
        for row in rows
        if (row["split"], row["target"]) == ("S0", "latency_ms")
    }
    assert found["boosted trees on totals"] < found["median label"]


def test_device_cpu_answers_with_intervals_and_reasons(
    checkpoint: dippm.pretrained.Checkpoint, graphs: Path
) -> None:
    raw = raw_graphs.read(collected_rows.workload("tinyconv", 12).model, graphs)
    answer = dippm.predict(build(raw), batch=4, device="cpu", checkpoint=checkpoint.path)
    assert answer.latency_ms is not None
    assert answer.intervals["latency_ms"].low <= answer.latency_ms
    assert answer.intervals["memory_mb"].high >= answer.memory_mb
    assert answer.energy_j is None
    assert answer.absent["energy_j"] == "made up without it"
    assert "CPU" in answer.absent["mig"]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"precision": "bf16"}, "precision"),
        ({"device": "A100"}, "A100"),
        ({"mode": "compiled"}, "mode"),
    ],
)
def test_other_conditions_are_refused(
    checkpoint: dippm.pretrained.Checkpoint, graphs: Path, changed: dict, what: str
) -> None:
    graph = build(raw_graphs.read(collected_rows.workload("tinyconv", 12).model, graphs))
    arguments = {"device": "cpu", "checkpoint": checkpoint.path, **changed}
    with pytest.raises(ConditionsError, match=what):
        dippm.predict(graph, **arguments)


def test_a_device_that_nobody_can_name_is_refused_before_training(
    graphs: Path, tmp_path: Path
) -> None:
    folder = collected_rows.write(tmp_path / "toy", collected_rows.rows())
    join.build(folder, graphs, tmp_path / "joined", workers=1)
    selection = load_selection(tmp_path / "joined")
    with pytest.raises(UnknownNameError, match="made-up CPU"):
        train_own(
            tmp_path / "joined", tmp_path / "x" / "0.1.0", selection=selection,
            network=PmgnsConfig(hidden=8), training=TRAINING, splits=["S0"], others=[],
            runs=tmp_path / "runs",
        )  # fmt: skip
    assert not (tmp_path / "x").exists()


def test_the_checkpoint_says_what_it_was_trained_on(
    checkpoint: dippm.pretrained.Checkpoint,
) -> None:
    trained = json.loads((checkpoint.path / "config.json").read_text())["trained_on"]
    assert trained["rows"] == 61
    assert set(trained["campaigns"]) >= {"c1"}


def test_energy_that_few_rows_have_is_learned_from_them(graphs: Path, tmp_path: Path) -> None:
    """On a GPU only a part of the plan spends time on the energy window."""
    records = [
        row | {"device": "A100-40GB", "device_kind": "cuda"} for row in collected_rows.rows()
    ]
    few = [row | {"energy_j": None} if i % 3 else row for i, row in enumerate(records)]
    folder = collected_rows.write(tmp_path / "toy", few)
    join.build(folder, graphs, tmp_path / "joined", workers=1)
    selection = load_selection(tmp_path / "joined")
    assert selection.targets == ("memory_mb", "latency_ms", "energy_j")
    labelled = int(selection.rows["energy_j"].notna().sum())
    assert 0 < labelled < len(selection.rows)
    checkpoint = train_own(
        tmp_path / "joined", tmp_path / "x" / "0.1.0", selection=selection,
        network=PmgnsConfig(hidden=8), training=TRAINING, splits=["S2"], others=[],
        runs=tmp_path / "runs",
    )  # fmt: skip
    tested = {row["target"]: row["n"] for row in checkpoint.metrics["summary"]}
    assert tested == {"memory_mb": 61, "latency_ms": 61, "energy_j": labelled}
    graph = build(raw_graphs.read(collected_rows.workload("tinymlp", 8).model, graphs))
    answer = dippm.predict(graph, batch=2, device="A100", checkpoint=checkpoint.path)
    assert answer.energy_j is not None
    assert answer.mig is not None


def test_precisions_are_told_apart_if_asked(graphs: Path, tmp_path: Path) -> None:
    """The same models once more in bf16, three times as fast."""
    records = [row | {"device": "AMD EPYC"} for row in collected_rows.rows(energy=False)]
    faster = [
        row
        | {
            "row_id": f"{row['row_id']}-bf16",
            "configuration_id": f"{row['configuration_id']}-bf16",
            "precision": "bf16",
            "latency_ms": row["latency_ms"] and row["latency_ms"] / 3,
        }
        for row in records
    ]
    folder = collected_rows.write(tmp_path / "toy", records + faster)
    join.build(folder, graphs, tmp_path / "joined", workers=1)
    selection = load_selection(tmp_path / "joined", precision="all")
    assert len(selection.rows) == 122
    assert told_apart(selection) == ("bf16", "fp32")
    network = PmgnsConfig(hidden=16, targets=selection.targets, precisions=told_apart(selection))
    checkpoint = train_own(
        tmp_path / "joined", tmp_path / "x" / "0.1.0", selection=selection, network=network,
        training=replace(TRAINING, epochs=12), splits=["S0"], others=[], runs=tmp_path / "runs",
    )  # fmt: skip
    graph = build(raw_graphs.read(collected_rows.workload("tinydeep", 24).model, graphs))
    slow, fast = (
        dippm.predict(graph, batch=4, device="cpu", checkpoint=checkpoint.path, precision=p)
        for p in ("fp32", "bf16")
    )
    assert slow.latency_ms > 1.5 * fast.latency_ms
    with pytest.raises(ConditionsError, match="fp16"):
        dippm.predict(graph, device="cpu", checkpoint=checkpoint.path, precision="fp16")
    simple = checkpoint.metrics["all predictors on the same rows and folds, percent"]
    errors = {r["predictor"]: r["mape"] for r in simple if r["target"] == "latency_ms"}
    assert errors["boosted trees on totals"] < 60
