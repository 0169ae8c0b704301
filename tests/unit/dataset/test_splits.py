from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dataset.join import splits
from dataset.join.splits import Split, file_name


@pytest.fixture
def table() -> pd.DataFrame:
    """Return 600 rows: 40 architectures, one in two of 8 families, on 3 GPUs."""
    rng = np.random.default_rng(0)
    architecture = rng.integers(0, 40, 600)
    family = np.array([f"family{a % 8}" for a in architecture])
    family[np.flatnonzero(architecture == 3)[:4]] = "family7"
    return pd.DataFrame(
        {
            "row_id": [f"s/{i}" for i in range(600)],
            "source": "s",
            "gpu": rng.choice(["A", "B", "C"], 600),
            "arch_id": [f"arch{a}" for a in architecture],
            "family_id": family,
            "latency_ms": rng.random(600),
        }
    )


def sides(split: Split, table: pd.DataFrame) -> list[tuple[pd.DataFrame, ...]]:
    by_id = table.set_index("row_id", drop=False)
    return [
        (by_id.loc[split.train(f)], by_id.loc[list(f.validation)], by_id.loc[list(f.test)])
        for f in split.folds
    ]


def test_the_random_split_has_its_shares(table: pd.DataFrame) -> None:
    ((train, validation, test),) = sides(splits.random_split(table), table)
    assert (len(train), len(validation), len(test)) == (420, 90, 90)


@pytest.mark.parametrize(
    "split",
    [splits.by_architecture, splits.family_out, lambda t: splits.family_out(t, 4)],
    ids=["S1", "S2", "S2-4"],
)
def test_no_architecture_sits_on_two_sides(split, table: pd.DataFrame) -> None:  # type: ignore[no-untyped-def]
    for train, validation, test in sides(split(table), table):
        groups = [set(part["arch_id"]) for part in (train, validation, test)]
        assert groups[0]
        assert groups[2]
        assert not groups[0] & groups[2]
        assert not groups[1] & groups[2]
        assert not groups[0] & groups[1]


def test_no_family_sits_on_two_sides_but_through_a_shared_architecture(
    table: pd.DataFrame,
) -> None:
    for fold, (train, _, test) in zip(
        splits.family_out(table).folds, sides(splits.family_out(table), table), strict=True
    ):
        assert fold.name not in set(train["family_id"])
        assert fold.name in set(test["family_id"])


def test_an_architecture_of_two_families_is_tested_with_either(table: pd.DataFrame) -> None:
    split = splits.family_out(table)
    shared = set(table["row_id"][table["arch_id"] == "arch3"])
    for fold in split.folds:
        if fold.name in ("family3", "family7"):
            assert shared <= set(fold.test)


def test_every_row_is_tested_once_by_architecture(table: pd.DataFrame) -> None:
    tested = [row for fold in splits.by_architecture(table).folds for row in fold.test]
    assert sorted(tested) == sorted(table["row_id"])


def test_a_gpu_left_out_never_trains(table: pd.DataFrame) -> None:
    split = splits.one_out(table, "S3a", "gpu")
    assert [fold.name for fold in split.folds] == ["A", "B", "C"]
    for fold, (train, validation, test) in zip(split.folds, sides(split, table), strict=True):
        assert set(test["gpu"]) == {fold.name}
        assert fold.name not in set(train["gpu"]) | set(validation["gpu"])


def test_gpu_and_family_are_both_unseen(table: pd.DataFrame) -> None:
    for train, _, test in sides(splits.gpu_and_family_out(table, 4), table):
        assert not set(train["gpu"]) & set(test["gpu"])
        assert not set(train["arch_id"]) & set(test["arch_id"])


def test_a_split_survives_its_file(tmp_path: Path, table: pd.DataFrame) -> None:
    split = splits.by_architecture(table)
    digest = split.save(tmp_path / "S1.json")
    assert Split.load(tmp_path / "S1.json") == split
    assert splits.by_architecture(table).save(tmp_path / "again.json") == digest
    assert splits.by_architecture(table, seed=1).save(tmp_path / "other.json") != digest


def test_other_data_has_another_hash(table: pd.DataFrame) -> None:
    changed = table.assign(latency_ms=table["latency_ms"].where(table.index != 7, 1.5))
    assert splits.sha256_of(table) != splits.sha256_of(changed)


def test_a_row_twice_is_refused(table: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="not unique"):
        splits.random_split(pd.concat([table, table.head(1)]))


def test_the_name_of_a_fold_names_no_folder():
    assert file_name("collected/h100 of RTX 3090") == "collected+h100+of+RTX+3090"
