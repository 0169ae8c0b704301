"""Held-out predictions of the default predictor → the tables of its card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dataset.join.latency_splits import SPLITS
from dippm.estimate.models.hybrid import HOST_DECIDES
from training.evaluation.held_out import HeldOut
from training.evaluation.metrics import bootstrap, card_columns, errors, grouped_errors
from training.hybrid.judge.latency_intervals import Floats, interval_rows
from training.hybrid.judge.report_strata import REFERENCE, WORK, Stratum, strata_of
from training.hybrid.rows.examples import Examples

LABEL, PREDICTED = "latency_ms", "predicted latency_ms"
FEWEST_ROWS = 5
"""Of a laboratory on a GPU, that have a line of their own."""


def summary(
    examples: Examples,
    held_out_sets: Sequence[HeldOut],
    widths: Callable[[pd.DataFrame], Floats] | None = None,
) -> list[dict[str, Any]]:
    """Return one line per stratum and split: errors in percent with a 95 % interval.

    Args:
        examples: all rows.
        held_out_sets: predictions of rows held out, by split.
        widths: returns the log half widths of rows of `interval_rows`; without it nothing is said
            of intervals.
    """
    strata = strata_of(examples.rows)
    lines = []
    for held in held_out_sets:
        every = held.rows
        if widths is not None:
            every = interval_rows(examples.rows, held, operators=True)
            every = every.assign(half=widths(every))
        for stratum in strata:
            if len(rows := rows_of(stratum, examples, every)):
                lines.append(_line(examples, stratum, held, rows))
    return lines


def laboratory_lines(
    examples: Examples, held: HeldOut, widths: Callable[[pd.DataFrame], Floats]
) -> list[dict[str, Any]]:
    """Return errors by GPU and laboratory held out, in percent, with what intervals are worth.

    Rows that the host decides are left out: they show the laboratory's machine, which a question
    may name and these did not.

    Args:
        examples: all rows.
        held: answers of the published folds of split L.
        widths: returns the log half widths of rows of `interval_rows`.
    """
    rows = interval_rows(examples.rows, held, operators=True)
    rows = rows[rows["host_share"] <= HOST_DECIDES]
    rows = rows.assign(half=widths(rows))
    known = [examples.rows[i] for i in rows["position"]]
    rows = rows.assign(
        laboratory=[row.source for row in known],
        work=[WORK[row.kind] for row in known],
        precision=[row.precision for row in known],
        mode=[row.mode for row in known],
    )
    lines = []
    for (work, gpu, laboratory), mine in rows.groupby(["work", "gpu", "laboratory"]):
        if len(mine) < FEWEST_ROWS:
            continue
        conditions = ", ".join([work, *sorted({*mine["precision"]}), *sorted({*mine["mode"]})])
        lines.append(
            {
                **_columns(gpu, f"{laboratory} ({conditions})", held.split, mine),
                "question": question_of_laboratory(laboratory) if work == WORK["model"] else None,
            }
        )
    return lines


def question_of_laboratory(laboratory: str) -> str:
    """Return what a user asks that the errors of a laboratory held out answer."""
    return f"a measured GPU, in another laboratory: {laboratory}"


def rows_of(stratum: Stratum, examples: Examples, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that belong to a stratum."""
    inside = [stratum.contains(examples.rows[i]) for i in rows["position"]]
    return rows[inside]


def _line(
    examples: Examples, stratum: Stratum, held: HeldOut, rows: pd.DataFrame
) -> dict[str, Any]:
    roofline = errors(rows[LABEL], roofline_sums(examples, rows["position"].to_numpy()))
    return {
        **_columns(stratum.gpu, f"{stratum.data} ({stratum.conditions})", held.split, rows),
        "bare_roofline_mape": round(roofline.mape, 1),
        "question": stratum.questions.get(held.split),
    }


def _columns(gpu: str, data: str, split: str, rows: pd.DataFrame) -> dict[str, Any]:
    """Return what every line of the summary has of the errors of some rows."""
    grouped = grouped_errors(rows[LABEL], rows[PREDICTED], list(rows["family_id"]))
    interval = bootstrap(rows[LABEL], rows[PREDICTED], list(rows["arch_id"]), n_resamples=500)
    return {
        "gpu": gpu,
        "target": "latency_ms",
        "data": data,
        "split": SPLITS[split],
        "n": len(rows),
        "architectures": int(rows["arch_id"].nunique()),
        "families": int(rows["family_id"].nunique()),
        **card_columns(grouped, interval),
        **(_of_intervals(rows) if "half" in rows else {}),
    }


def _of_intervals(rows: pd.DataFrame) -> dict[str, float]:
    """Return how often intervals of 90 % hold, and how wide they are, in percent."""
    inside = rows["log_error"].abs() <= rows["half"]
    return {
        "coverage": round(100 * float(inside.mean()), 1),
        "median_half_width": round(100 * float(np.expm1(rows["half"].median())), 1),
    }


def learners(
    examples: Examples, held_out_sets: Mapping[str, Sequence[HeldOut]]
) -> list[dict[str, Any]]:
    """Return the errors of each learner, by split, on the reference table."""
    lines = []
    for name, of_learner in held_out_sets.items():
        for held in of_learner:
            rows = rows_of(REFERENCE, examples, held.rows)
            if rows.empty:
                continue
            grouped = grouped_errors(rows[LABEL], rows[PREDICTED], list(rows["family_id"]))
            lines.append(
                {
                    "learner": name,
                    "split": SPLITS[held.split],
                    "n": grouped.micro.n,
                    "mape": round(grouped.micro.mape, 2),
                    "median_ape": round(grouped.micro.median_ape, 2),
                    "macro_mape": round(grouped.macro.mape, 2),
                    "acc10": round(grouped.micro.acc10, 1),
                }
            )
    return sorted(lines, key=lambda line: line["split"])


def by_family(examples: Examples, held: HeldOut) -> list[dict[str, Any]]:
    """Return the errors of each family that was held out, on the reference table; [] without it."""
    rows = rows_of(REFERENCE, examples, held.rows)
    if rows.empty:
        return []
    grouped = grouped_errors(rows[LABEL], rows[PREDICTED], list(rows["family_id"]))
    return [
        {
            "family": name,
            "n": error.n,
            "median_ape": round(error.median_ape, 1),
            "mape": round(error.mape, 1),
            "log_bias": round(error.log_bias, 3),
        }
        for name, error in sorted(grouped.groups.items(), key=lambda item: -item[1].mape)
    ]


def roofline_sums(examples: Examples, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Σ roofline of rows, in ms: the same kernels without anything learned."""
    sums = []
    for position in positions:
        part = examples.of_row(position)
        times = np.exp(examples.log_roofline[part].astype(np.float64))
        sums.append(float(times @ examples.count[part]))
    return np.array(sums)
