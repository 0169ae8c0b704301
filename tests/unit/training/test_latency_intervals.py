"""The interval law on made-up errors that grow with the distance to what was measured."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dippm.estimate.models.intervals import (
    COVERAGE,
    FEATURES,
    SEEN,
    UNSEEN,
    IntervalLaw,
    interval_features,
)
from dippm.estimate.models.targets import two_sided
from training.evaluation.held_out import HeldOut
from training.hybrid.judge.latency_intervals import (
    covered,
    fit_intervals,
    half_widths,
    interval_law_rows,
    interval_rows,
)

ROWS = 3000
NEAREST = {"S0": 0.01, "S1": 0.03, "S2-10": 0.12, "S3a": 0.01}
"""About how far rows of each split are from what trains in their fold."""
FOLDS = {"S0": 1, "S1": 5, "S2-10": 10, "S3a": 2}
FEW = {"S2-10": 300}


def sketch(names: list[str]) -> SimpleNamespace:
    """Stands for examples: all that intervals read of them."""
    rows = [
        SimpleNamespace(
            is_model=not name.startswith("part"),
            mode="eager",
            table=f"t{i % 3}",
            device=SimpleNamespace(name="X"),
        )
        for i, name in enumerate(names)
    ]
    return SimpleNamespace(rows=rows, launches=np.full(len(rows), 50.0))


def held(split: str, seed: int) -> HeldOut:
    """Predictions whose log errors have the size 0.3 √novelty, on a new GPU three times that."""
    random = np.random.default_rng(seed)
    count = FEW.get(split, ROWS)
    position = random.permutation(ROWS)[:count]
    novelty = NEAREST[split] * np.exp(0.7 * random.normal(size=count))
    size = 0.3 * np.sqrt(np.maximum(novelty, 0.02)) * (3 if split == "S3a" else 1)
    rows = pd.DataFrame(
        {
            "position": position,
            "arch_id": [f"model {p}" for p in position],
            "family_id": "made up",
            "fold": [str(p % FOLDS[split]) for p in position],
            "latency_ms": 1.0,
            "predicted latency_ms": np.exp(size * random.normal(size=count)),
            "features": [
                interval_features(0.02, 0.0, 0.0, False, 50.0, far, 1.0 if split == "S3a" else far)
                for far in novelty
            ],
            "group": UNSEEN if split == "S3a" else SEEN,
            "beside_law": 0.0,
        }
    )
    return HeldOut("made up", split, rows, 0.0)


EXAMPLES = sketch([f"model {i}" for i in range(ROWS)])
HELDS = {split: held(split, seed) for seed, split in enumerate(NEAREST)}


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return interval_law_rows(EXAMPLES.rows, HELDS)


@pytest.fixture(scope="module")
def lines(rows: pd.DataFrame) -> dict[str, dict]:
    found = {line["rows"]: line for line in covered(rows)}
    return {name.split()[0]: line for name, line in found.items() if name.endswith(", all")}


def test_every_split_of_the_law_is_there(rows: pd.DataFrame) -> None:
    assert dict(rows.groupby("split")["group"].first()) == {
        "S0": SEEN, "S1": SEEN, "S2-10": SEEN, "S3a": UNSEEN,
    }  # fmt: skip


def test_rows_drawn_at_random_are_covered_as_promised_and_new_families_nearly(lines) -> None:
    assert 87 <= lines["S0"]["coverage"] <= 93
    assert lines["S2"]["coverage"] >= 85


def test_kin_have_narrower_intervals_than_what_is_far(lines) -> None:
    widths = [lines[split]["median_half_width"] for split in ("S0", "S1", "S2")]
    assert widths == sorted(widths)
    assert widths[2] > 1.5 * widths[0]
    assert lines["S3a"]["median_half_width"] > 2 * widths[0]


def test_a_new_gpu_does_not_hide_that_novelty_matters(rows: pd.DataFrame) -> None:
    with_gpu, without = fit_intervals(rows), fit_intervals(rows[rows["group"] == SEEN])
    both = [FEATURES.index(name) for name in ("log_novelty", "log_gpu_novelty")]

    def slope(law: IntervalLaw) -> float:
        return sum(law.coefficients[place] for place in both)

    assert slope(with_gpu) == pytest.approx(slope(without), abs=0.1)
    assert slope(with_gpu) > 0.25


def test_a_host_that_nobody_named_is_not_asked_of_the_law(rows: pd.DataFrame) -> None:
    """Errors of new GPUs grow by what their hosts are off; the law is the same, intervals wider."""
    new = rows["group"] == UNSEEN
    host = np.where(new, 0.3, 0.0)
    signs = np.where(rows["log_error"] < 0, -1.0, 1.0)
    off = signs * np.hypot(rows["log_error"], two_sided(COVERAGE) * host)
    wrong = rows.assign(log_error=off, beside_law=two_sided(COVERAGE) * host)
    assert fit_intervals(wrong).quantile == pytest.approx(fit_intervals(rows).quantile, rel=1e-6)
    tried = wrong[new]
    assert (np.abs(tried["log_error"]) <= half_widths(tried, wrong)).mean() >= 0.85
    assert (half_widths(tried, wrong) > half_widths(rows[new], rows)).all()


def test_a_split_that_novelty_does_not_explain_is_covered_nearly_all_the_same(rows) -> None:
    """New families are a tenth of the rows, and err more than their features say."""
    wrong = rows.copy()
    wrong.loc[wrong["split"] == "S2-10", "log_error"] *= 4
    law = fit_intervals(wrong)
    mine = wrong[wrong["split"] == "S2-10"]
    half = np.array([law.half_width(f, SEEN) for f in mine["features"]])
    assert (mine["log_error"].abs() <= half).mean() >= 0.83


def test_a_row_is_tried_by_a_law_that_never_saw_it_in_any_split(rows: pd.DataFrame) -> None:
    tried = rows[rows["split"] == "S2-10"]
    before = half_widths(tried, rows)
    mine = tried["fold"] == "0"
    wrong = rows.copy()
    wrong.loc[wrong["position"].isin(tried[mine]["position"]), "log_error"] *= 100
    after = half_widths(tried, wrong)
    assert after[mine] == pytest.approx(before[mine])
    assert (after[~mine] != before[~mine]).all()


def test_a_split_of_one_fold_is_tried_in_parts_by_architecture(rows: pd.DataFrame) -> None:
    parts = rows[rows["split"] == "S0"].groupby("arch_id")["part"].nunique()
    assert rows[rows["split"] == "S0"]["part"].nunique() == 5
    assert (parts == 1).all()


def test_what_is_no_whole_model_teaches_no_width() -> None:
    examples = sketch(["part"] * 10 + ["model"] * (ROWS - 10))
    assert (interval_rows(examples.rows, HELDS["S1"])["position"] >= 10).all()
    assert len(interval_rows(examples.rows, HELDS["S1"], operators=True)) == ROWS
