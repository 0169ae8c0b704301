"""Training examples from a joined set of our own: which rows, under which conditions, which labels.

A `pmgns` network sees the graph and the batch, so one network is for one device, mode and phase,
and for one precision and layout unless it is asked to tell them apart ("all"). Rows under other
conditions are left out, counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dataset.join.splits import Fold, Split
from dataset.measured.location import DataNotFoundError
from dippm.estimate.models.pmgns_network import PmgnsConfig
from training.pmgns.examples import Examples, encoded

TARGETS = ("memory_mb", "latency_ms", "energy_j")
CONDITIONS = ("gpu", "phase", "mode", "layout", "precision")
PREFERRED = {"phase": "inference", "mode": "eager", "layout": "nchw"}
TOLD_APART = ("precision", "layout")
ALL = "all"
VALIDATION_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that one network learns from.

    Attributes:
        rows: rows of the joined table, by row id.
        conditions: value of each of `CONDITIONS`, "all" for those of `TOLD_APART` that are mixed.
        left_out: rows under other conditions, by the first condition that differs.
        targets: those of `TARGETS` that some row has.
        absent: reason by target that no row has.
    """

    rows: pd.DataFrame
    conditions: Mapping[str, str]
    left_out: Mapping[str, int]
    targets: tuple[str, ...]
    absent: Mapping[str, str]


def load_selection(joined: Path, **wanted: str | None) -> Selection:
    """Choose the rows of a joined folder.

    Args:
        joined: folder that `dataset.build_collected` wrote.
        wanted: values of `CONDITIONS`, "all" for those of `TOLD_APART` that shall be mixed; for
            the others the preferred value, else the most frequent one among the rows that are left.

    Raises:
        DataNotFoundError: if no row is left.
    """
    path = joined / "rows.parquet"
    if not path.is_file():
        raise DataNotFoundError(f"no {path}", "Make it with `python -m dataset.build_collected`.")
    return select(pd.read_parquet(path), **wanted)


def select(table: pd.DataFrame, **wanted: str | None) -> Selection:
    """Choose rows, see `load_selection`."""
    if table.empty:
        raise DataNotFoundError(
            "the joined set has no row of a model", "Its manifest.json says what was left out."
        )
    rows, conditions, left_out = table, {}, {}
    for name in CONDITIONS:
        if name in TOLD_APART and wanted.get(name) == ALL:
            conditions[name] = ALL
            continue
        value = wanted.get(name) or _default(rows[name], PREFERRED.get(name))
        kept = rows[rows[name] == value]
        if kept.empty:
            known = ", ".join(map(str, rows[name].dropna().unique())) or "none"
            raise DataNotFoundError(f"no row has {name} {value}", f"The set has: {known}.")
        if len(kept) < len(rows):
            left_out[f"other {name}"] = len(rows) - len(kept)
        rows, conditions[name] = kept, str(value)
    rows = rows.sort_values("row_id").reset_index(drop=True)
    for target in TARGETS:
        rows[target] = pd.to_numeric(rows[target]).where(lambda labels: labels > 0)
    targets = tuple(target for target in TARGETS if rows[target].notna().any())
    absent = {t: _why_absent(rows, t) for t in TARGETS if t not in targets}
    return Selection(rows, conditions, left_out, targets, absent)


def told_apart(selection: Selection) -> tuple[str, ...]:
    """Return the precisions that a network of these rows tells apart; none if it need not."""
    mixed = any(selection.conditions[name] == ALL for name in TOLD_APART)
    return tuple(sorted(selection.rows["precision"].unique())) if mixed else ()


def examples_of(selection: Selection, joined: Path, cache: Path, config: PmgnsConfig) -> Examples:
    """Return the encoded graphs and labels of the selected rows, in their order."""
    files = json.loads((joined / "graphs.json").read_text(encoding="utf-8"))
    rows = selection.rows.assign(file=[Path(files[model]) for model in selection.rows["model"]])
    examples = encoded(rows, cache, config)
    assert examples is not None, "a selection has rows"
    return examples


def restricted(split: Split, rows: pd.DataFrame) -> Split:
    """Return a split with only some of its rows, folds without test rows left out.

    A fold whose validation part is empty, because every held-back group was larger than its share,
    gets whole architectures from its training part.
    """
    chosen = set(rows["row_id"])
    kept = replace(split, rows=tuple(row for row in split.rows if row in chosen), folds=())
    folds = []
    for fold in split.folds:
        small = Fold(fold.name, *(_only(p, chosen) for p in (fold.test, fold.validation)))
        small = replace(small, left_out=_only(fold.left_out, chosen))
        if not small.test:
            continue
        if not small.validation:
            training = rows[rows["row_id"].isin(kept.train(small))]
            small = replace(small, validation=some_architectures(training, split.seed))
        folds.append(small)
    return replace(kept, folds=tuple(folds))


def everything(split: Split, rows: pd.DataFrame) -> Fold:
    """Return the fold of the network that is shipped: no test part, a validation part to stop."""
    return Fold("shipped", (), some_architectures(rows, split.seed))


def some_architectures(rows: pd.DataFrame, seed: int) -> tuple[str, ...]:
    """Return the row ids of random architectures with about a tenth of the rows, at least one."""
    counts = rows["arch_id"].value_counts().sort_index()
    order = np.random.default_rng(seed).permutation(len(counts))
    taken = counts.iloc[order].cumsum() <= max(VALIDATION_SHARE * len(rows), counts.iloc[order[0]])
    return tuple(sorted(rows["row_id"][rows["arch_id"].isin(taken.index[taken])]))


def _only(ids: tuple[str, ...], chosen: set[str]) -> tuple[str, ...]:
    return tuple(row for row in ids if row in chosen)


def _default(values: pd.Series[Any], preferred: str | None) -> Any:
    present = values.dropna()
    if preferred is not None and (present == preferred).any():
        return preferred
    return present.mode().iloc[0] if len(present) else preferred


def _why_absent(rows: pd.DataFrame, target: str) -> str:
    """Return the reason that most rows give for a missing label."""
    reasons = [json.loads(text).get(target) for text in rows["absent"].dropna()]
    known = pd.Series([reason for reason in reasons if reason], dtype="object")
    return str(known.mode().iloc[0]) if len(known) else "no row has it"
