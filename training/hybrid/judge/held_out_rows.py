"""Held-out predictions of the default predictor as the rows that `training.evaluation` reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from dippm.estimate.models.hybrid import HOST_DECIDES
from training.evaluation.held_out import BASELINE, LEVELS, HeldOut, half_width
from training.forked import map_forked
from training.hybrid.fit.batches import Indices
from training.hybrid.fit.folds import Runner, Task
from training.hybrid.fit.mixture import Mixture
from training.hybrid.judge.baselines import NAMES, ROOFLINE, Inputs
from training.hybrid.judge.held_out_times import HeldOutTimes, held_out_times
from training.hybrid.judge.latency_intervals import half_widths, interval_law_rows, interval_rows
from training.hybrid.judge.report import FEWEST_ROWS, question_of_laboratory
from training.hybrid.judge.report_strata import Stratum, strata_of
from training.hybrid.rows.examples import Row

FEWEST_TO_FIT = 10
AskedRows = tuple[Task, Indices]
"""A task, and the positions of the rows that its fold is asked for."""


@dataclass(frozen=True, slots=True)
class _SharedInputs:
    """Inputs that the tasks of all splits share.

    Attributes:
        runner: runner with finished fits.
        mixture: mixture of the learners.
        inputs: inputs of the baselines, of all rows.
        tables: name of the table of each row, see `table_of`, shape (R,).
        alike: name of the rows that stand in for a table that did not train, shape (R,).
    """

    runner: Runner
    mixture: Mixture
    inputs: Inputs
    tables: NDArray[np.str_]
    alike: NDArray[np.str_]

    @classmethod
    def of(cls, runner: Runner, mixture: Mixture) -> _SharedInputs:
        rows = runner.examples.rows
        return cls(
            runner,
            mixture,
            Inputs.of(runner.examples, np.arange(len(rows))),
            np.array([table_of(row) for row in rows]),
            np.array([_alike(row) for row in rows]),
        )

    def answers(self, asked: AskedRows) -> tuple[HeldOutTimes, dict[str, NDArray[np.float64]]]:
        """Return times and baselines of the rows of a task."""
        torch.set_num_threads(1)
        return held_out_times(self.runner, *asked, self.mixture), self._baselines(*asked)

    def _baselines(self, task: Task, tested: Indices) -> dict[str, NDArray[np.float64]]:
        """Return answers in ms by column, fitted on the table of each row; NaN without any.

        Of a GPU that is held out nothing trains: the same kind of rows on other GPUs have to do.
        What has to be fitted is fitted to whole models only.
        """
        examples = self.runner.examples
        latency = np.exp(examples.log_latency.astype(np.float64))
        found = {f"{BASELINE}{name}": np.full(len(tested), np.nan) for name in NAMES}
        roofline = self.inputs.predict(ROOFLINE, latency, task.train, tested)
        found[f"{BASELINE}{ROOFLINE}"] = roofline
        for table in np.unique(self.tables[tested]):
            places = np.flatnonzero(self.tables[tested] == table)
            test = tested[places]
            if not examples.rows[test[0]].is_model:
                continue
            train: Indices = task.train[self.tables[task.train] == table]
            if not len(train):
                train = task.train[self.alike[task.train] == self.alike[test[0]]]
            if len(train) >= FEWEST_TO_FIT:
                for name in set(NAMES) - {ROOFLINE}:
                    answers = self.inputs.predict(name, latency, train, test)
                    found[f"{BASELINE}{name}"][places] = answers
        return found


def held_out_rows(
    runner: Runner,
    held_out_sets: Mapping[str, HeldOut],
    tasks: Mapping[str, Sequence[Task]],
    mixture: Mixture,
) -> pd.DataFrame:
    """Return a row for each prediction of each split; see `training.evaluation.held_out.COLUMNS`.

    Args:
        runner: with finished fits.
        held_out_sets: predictions of the published folds, by split.
        tasks: tasks of these folds, by split; the first seed decides "bound" and "costliest".
        mixture: mixture of the learners.
    """
    law_rows = interval_law_rows(runner.examples.rows, held_out_sets)
    first = {name: _first_seeds(tasks[name]) for name in held_out_sets}
    answered = [
        (task, HeldOut(held.predictor, name, _of_fold(held.rows, task.fold), 0.0))
        for name, held in held_out_sets.items()
        for task in first[name]
    ]
    shared = _SharedInputs.of(runner, mixture)
    asked = [(task, held.rows["position"].to_numpy()) for task, held in answered]
    found = map_forked(shared.answers, asked, what="where time goes, and baselines")
    parts = []
    for (_, held), (times, baselines) in zip(answered, found, strict=True):
        part = _described(shared, held, times)
        parts.append(part.assign(**_half_widths(runner, held, law_rows), **baselines))
    return pd.concat(parts, ignore_index=True)


def _of_fold(rows: pd.DataFrame, fold: str) -> pd.DataFrame:
    return rows[rows["fold"] == fold].sort_values("position").reset_index(drop=True)


def table_of(row: Row) -> str:
    """Return the name of the table on which the errors of a row are stated.

    Whole models of one machine, software, mode, precision and layout are a table; what is smaller
    is measured on so many machines that source, GPU, precision and mode have to do.
    """
    if row.is_model:
        parts = [row.table, row.precision, "nhwc" if row.channels_last else ""]
    else:
        parts = [f"{row.source} {row.device.name} {row.mode}", row.precision]
    return ", ".join(filter(None, parts))


def _first_seeds(tasks: Sequence[Task]) -> list[Task]:
    return list({task.fold: task for task in reversed(tasks)}.values())[::-1]


def _alike(row: Row) -> str:
    return f"{row.source} {row.kind} {row.mode} {row.precision} {row.channels_last}"


def _described(shared: _SharedInputs, held: HeldOut, times: HeldOutTimes) -> pd.DataFrame:
    rows, runner = held.rows, shared.runner
    known = [runner.examples.rows[i] for i in rows["position"]]
    strata = strata_of(runner.examples.rows)
    predicted_ms, host_share = rows["predicted latency_ms"], rows["host_share"]
    host = (host_share * predicted_ms).to_numpy() > times.device_ms
    bound = np.where(times.compute_share > 0.5, "compute", "memory")
    gflop = np.expm1(shared.inputs.totals[rows["position"], 0]) / 1e9
    return pd.DataFrame(
        {
            "split": held.split,
            "fold": rows["fold"],
            "row_id": rows["row_id"],
            "kind": [row.kind for row in known],
            "source": [row.source for row in known],
            "table": [table_of(row) for row in known],
            "question": _questions(known, host_share, held.split, strata),
            "gpu": [row.device.name for row in known],
            "mig": [row.mig.name if row.mig else None for row in known],
            "precision": [row.precision for row in known],
            "mode": [row.mode for row in known],
            "layout": ["nhwc" if row.channels_last else "nchw" for row in known],
            "timer": [row.timer for row in known],
            "family": rows["family_id"],
            "architecture": rows["arch_id"],
            "model": [row.graph for row in known],
            "batch": [row.batch for row in known],
            "gflop": gflop,
            "launches": runner.examples.launches[rows["position"]],
            "measured_ms": rows["latency_ms"],
            "predicted_ms": predicted_ms,
            "bound": np.where(host, "host", bound),
            "host_share": host_share,
            "costliest": [" · ".join(kernels) for kernels in times.costliest],
        }
    )


def _questions(
    rows: Sequence[Row], host_share: Sequence[float], split: str, strata: Sequence[Stratum]
) -> list[str | None]:
    """Return what a user asks that the error of each row answers, None if nothing.

    Laboratories are judged by what their machine does not decide, see `laboratory_lines`.
    """
    if split != "L":
        return [_question(row, split, strata) for row in rows]
    mine = [
        (row.source, row.device.name) if row.is_model and share <= HOST_DECIDES else None
        for row, share in zip(rows, host_share, strict=True)
    ]
    often = {cell for cell, count in Counter(mine).items() if cell and count >= FEWEST_ROWS}
    return [question_of_laboratory(cell[0]) if cell in often else None for cell in mine]


def _question(row: Row, split: str, strata: Sequence[Stratum]) -> str | None:
    mine = (stratum for stratum in strata if split in stratum.questions and stratum.contains(row))
    return next((stratum.questions[split] for stratum in mine), None)


def _half_widths(
    runner: Runner, held: HeldOut, law_rows: pd.DataFrame
) -> dict[str, NDArray[np.float64]]:
    """Return log half widths by column, by laws that did not see the rows they are tried on."""
    rows = interval_rows(runner.examples.rows, held, operators=True)
    # What no law answers for grows with the level, and where it is more than the errors the rest
    # shrinks: what holds more often is never narrower.
    found = np.maximum.accumulate([half_widths(rows, law_rows, level) for level in LEVELS])
    return dict(zip(map(half_width, LEVELS), found, strict=True))
