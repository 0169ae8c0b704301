"""Held-out rows → lines of errors: by question, by table, and the models that are worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dataset.join.latency_splits import SPLITS
from dippm.estimate.models.intervals import COVERAGE
from training.evaluation.held_out import BASELINE, KINDS, half_width
from training.evaluation.metrics import bootstrap, card_columns, grouped_errors

RESAMPLES = 500
KEY = ("question", "gpu", "split")
SAME = ("n", "median_ape", "mape")


def split_name(split: str) -> str:
    """Return the name of a split for people."""
    return SPLITS.get(split, split)


def error_line(rows: pd.DataFrame) -> dict[str, Any]:
    """Return errors of rows in percent, those of baselines, and what intervals of 90 % are worth.

    "baselines" has the MAPE of each on the same rows, None where it has no answer for one of them,
    "best_baseline" the name of the least; "mape_ci95" is a bootstrap over architectures,
    "half_width" the median one in percent.
    """
    measured, predicted = rows["measured_ms"], rows["predicted_ms"]
    grouped = grouped_errors(measured, predicted, list(rows["family"]))
    between = bootstrap(measured, predicted, list(rows["architecture"]), n_resamples=RESAMPLES)
    half = rows[half_width(COVERAGE)]
    baselines = {
        name.removeprefix(BASELINE): _mape(measured, rows[name]) for name in baselines_of(rows)
    }
    known = {name: mape for name, mape in baselines.items() if mape is not None}
    return {
        "n": len(rows),
        "architectures": int(rows["architecture"].nunique()),
        "families": int(rows["family"].nunique()),
        **card_columns(grouped, between),
        "covered": 100 * float((log_error(rows).abs() <= half).mean()),
        "half_width": 100 * float(np.expm1(half.median())),
        "baselines": baselines,
        "best_baseline": min(known, key=lambda name: known[name], default=None),
    }


def baselines_of(rows: pd.DataFrame) -> list[str]:
    """Return the columns of baselines."""
    return [name for name in rows.columns if name.startswith(BASELINE)]


def log_error(rows: pd.DataFrame) -> pd.Series:
    """Return log(predicted / measured) of each row."""
    return np.log(rows["predicted_ms"] / rows["measured_ms"])


def _mape(measured: pd.Series, answers: pd.Series) -> float | None:
    if answers.isna().any():
        return None
    return 100 * float((answers / measured - 1).abs().mean())


def questions(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one line for each question and GPU, in the order of the splits."""
    asked = rows[rows["question"].notna()]
    return [
        {"question": question, "gpu": gpu, "split": split, **error_line(part)}
        for (split, question, gpu), part in asked.groupby(["split", "question", "gpu"])
    ]


def tables(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one line for each table of a split: whole models first, most rows first."""
    lines = [
        {"kind": kind, "table": table, **error_line(part)}
        for (kind, table), part in rows.groupby(["kind", "table"])
    ]
    return sorted(lines, key=lambda line: (KINDS.index(line["kind"]), -line["n"], line["table"]))


def worst_models(rows: pd.DataFrame, count: int) -> list[dict[str, Any]]:
    """Return the rows whose predictions are furthest off by ratio, one for each architecture.

    "of" counts the rows of the architecture, "off" is their median factor between predicted and
    measured, whichever is larger.
    """
    size = log_error(rows).abs()
    of = size.groupby(rows["architecture"]).agg(["size", "median"])
    first = rows.assign(size=size).sort_values("size", ascending=False, kind="stable")
    first = first.drop_duplicates("architecture").head(count)
    half = np.exp(first[half_width(COVERAGE)])
    first = first.assign(
        ratio=first["predicted_ms"] / first["measured_ms"],
        low=first["predicted_ms"] / half,
        high=first["predicted_ms"] * half,
        inside=first["size"] <= first[half_width(COVERAGE)],
        of=first["architecture"].map(of["size"]),
        off=np.exp(first["architecture"].map(of["median"])),
    )
    found: list[dict[str, Any]] = first.to_dict("records")
    return found


def disagreements(
    lines: Sequence[Mapping[str, Any]], summary: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return where the errors of questions are not those that a checkpoint states.

    Args:
        lines: lines of `questions`.
        summary: "summary" of the checkpoint's metrics.
    """
    mine = {tuple(line[name] for name in KEY): line for line in lines}
    mine = {(*key[:2], split_name(key[2])): line for key, line in mine.items()}
    stated = {
        tuple(line[name] for name in KEY): line
        for line in summary
        if line["target"] == "latency_ms" and line.get("question")
    }
    return [
        f"{', '.join(key)}: {_figures(mine.get(key))} here, {_figures(stated.get(key))} stated"
        for key in {**mine, **stated}
        if _figures(mine.get(key)) != _figures(stated.get(key))
    ]


def _figures(line: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {line[name]}" for name in SAME) if line else "nothing"
