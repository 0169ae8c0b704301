"""Held-out predictions of training steps and of baselines → tables of the card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dataset.join.latency_splits import SPLITS
from dippm.estimate.features.kernel_features import FEATURE_NAMES
from training.evaluation.held_out import HeldOut
from training.evaluation.metrics import bootstrap, card_columns, grouped_errors
from training.hybrid.rows.examples import Row
from training.steps.examples import StepExamples
from training.steps.splits import StepFold

Floats = NDArray[np.float64]
LABEL, PREDICTED = "latency_ms", "predicted latency_ms"
REFERENCE = "timm_train (amp, nchw, eager, wall)"
QUESTIONS = {
    "S2-10": "training step of a kind of model never seen",
    "S3a": "training step on a GPU of which only inference was measured",
}
_FLOPS = FEATURE_NAMES.index("log_flops")


def data_of(row: Row) -> str:
    """Return the table that a row belongs to, for people."""
    layout = "nhwc" if row.channels_last else "nchw"
    place = "MIG slices, " if row.mig else ""
    return f"{row.source} ({place}{row.precision}, {layout}, {row.mode}, {row.timer})"


def summary(examples: StepExamples, held_out_sets: Sequence[HeldOut]) -> list[dict[str, Any]]:
    """Return one line per table and split: errors in percent with a 95 % interval."""
    lines = []
    for held in held_out_sets:
        of = [
            (data_of(examples.rows[i]), examples.rows[i].device.name) for i in held.rows["position"]
        ]
        for data, gpu in sorted(set(of), key=lambda key: (key[0] != REFERENCE, key)):
            lines.append(_line(held, data, gpu, held.rows[[o == (data, gpu) for o in of]]))
    return lines


def _line(held: HeldOut, data: str, gpu: str, rows: pd.DataFrame) -> dict[str, Any]:
    grouped = grouped_errors(rows[LABEL], rows[PREDICTED], list(rows["family_id"]))
    interval = bootstrap(rows[LABEL], rows[PREDICTED], list(rows["arch_id"]), n_resamples=500)
    is_reference = data == REFERENCE or (held.split == "S3a" and gpu.startswith("A100"))
    return {
        "gpu": gpu,
        "target": LABEL,
        "data": data,
        "split": SPLITS[held.split],
        "n": len(rows),
        "architectures": int(rows["arch_id"].nunique()),
        "families": int(rows["family_id"].nunique()),
        **card_columns(grouped, interval),
        "question": QUESTIONS.get(held.split) if is_reference else None,
    }


def baselines(
    examples: StepExamples,
    folds: Mapping[str, Sequence[StepFold]],
    held_out_sets: Mapping[str, HeldOut],
    with_own_terms: Mapping[str, HeldOut],
) -> list[dict[str, Any]]:
    """Return one row per baseline and split: errors in percent on the reference table."""
    inside = np.array([data_of(step) == REFERENCE for step in examples.rows])
    latency, flops, roofline = examples.latency_ms, _flops(examples), _roofline(examples)
    lines = []
    for split, held in held_out_sets.items():
        rows = with_own_terms[split].rows.set_index("position")
        answers_ms = held.rows.set_index("position")[PREDICTED]
        found: dict[str, list[Floats]] = {}
        tested = []
        for fold in folds[split]:
            train, test = fold.train[inside[fold.train]], fold.test[inside[fold.test]]
            if not len(train) or not len(test):
                continue
            tested.append(test)
            forward = rows["forward_ms"]
            per_flop = np.median(latency[train] / flops[train])
            per_roofline = np.median(latency[train] / roofline[train])
            for name, answer in (
                ("FLOPs-proportional", per_flop * flops[test]),
                ("bare roofline sum", roofline[test]),
                ("roofline sum × one number", per_roofline * roofline[test]),
                ("three forward passes", 3.0 * forward.loc[test]),
                ("law with the table's own terms, without trees", rows["plain_ms"].loc[test]),
                ("law with the table's own terms", rows[PREDICTED].loc[test]),
                ("published fold, as a user asks", answers_ms.loc[test]),
            ):
                found.setdefault(name, []).append(np.asarray(answer))
        for name, answers in found.items():
            chosen = np.concatenate(tested)
            families = [examples.rows[i].family for i in chosen]
            error = grouped_errors(latency[chosen], np.concatenate(answers), families)
            lines.append(
                {
                    "predictor": name,
                    "split": SPLITS[split],
                    "n": error.micro.n,
                    "mape": round(error.micro.mape, 2),
                    "median_ape": round(error.micro.median_ape, 2),
                    "macro_mape": round(error.macro.mape, 2),
                    "acc10": round(error.micro.acc10, 1),
                }
            )
    return lines


def by_family(examples: StepExamples, held: HeldOut) -> list[dict[str, Any]]:
    """Return the errors of each family that was held out, on the reference table."""
    inside = [data_of(examples.rows[i]) == REFERENCE for i in held.rows["position"]]
    rows = held.rows[inside]
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


def _flops(examples: StepExamples) -> Floats:
    work = np.expm1(examples.features[:, _FLOPS].astype(np.float64)) * examples.count
    return np.bincount(examples.row_of, work, len(examples.rows)).astype(np.float64)


def _roofline(examples: StepExamples) -> Floats:
    return np.asarray(examples.class_roofline_ms().sum(axis=1))
