"""Fits of every fold, published and asked; each is kept, so that a run that was cut off goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xgboost
from rich.progress import Progress

from dippm.estimate.features.kernel import PARTS
from dippm.estimate.models.training_memory import StepMemoryModel
from dippm.estimate.pretrained.checkpoint import save_checkpoint
from training.evaluation.held_out import HeldOut
from training.hybrid.fit.folds import keep_arrays
from training.hybrid.judge.published_folds import CARD as FOLD_CARD
from training.hybrid.judge.published_folds import (
    METRICS,
    NO_WIDTHS,
    PREDICTOR,
    ask_folds,
    kept_answers,
)
from training.hybrid.rows.examples import GraphLookup
from training.steps.base import Base, Floats
from training.steps.examples import StepExamples
from training.steps.fit import Multipliers, Started, StepSettings, fit_step, predict_step
from training.steps.law import step_configuration, step_tensors
from training.steps.splits import StepFold

_FORWARD = PARTS.index("forward")
CARD: dict[str, Any] = {
    **FOLD_CARD,
    "summary": "A fold of the predictor of training steps, for its evaluation.",
    "command": "python -m training.steps.train",
}


@dataclass(frozen=True, slots=True)
class StepRunner:
    """Fits folds, publishes them, and asks each for what it did not see.

    Attributes:
        examples: all rows.
        folder: where fits and answers are kept.
        settings: settings of the fits.
        memory: model of the memory of training steps, for checkpoints.
        graph: key → graph.
    """

    examples: StepExamples
    folder: Path
    settings: StepSettings
    memory: StepMemoryModel
    graph: GraphLookup

    def held_out(self, folds: Sequence[StepFold]) -> HeldOut:
        """Return the answers of the published folds of a split, see `published_folds.ask_folds`.

        A step without an update is no question of a user: it has no row.
        """
        rows = self.examples.rows
        asked = [{int(i): rows[i] for i in fold.test if rows[i].optimizer} for fold in folds]
        folders = []
        with Progress() as progress:
            bar = progress.add_task("fits of training steps", total=len(folds))
            for fold in folds:
                folders.append(self._checkpoint(fold))
                progress.update(bar, advance=1, description=f"fits (last: {fold.file[:40]})")
        questions = dict(zip(folders, asked, strict=True))
        ask_folds({folder: mine for folder, mine in questions.items() if mine}, self.graph)
        parts = [
            kept_answers(folder, fold.name, mine)
            for fold, folder, mine in zip(folds, folders, asked, strict=True)
            if mine
        ]
        return HeldOut(PREDICTOR, folds[0].split, pd.concat(parts, ignore_index=True), 0.0)

    def with_own_terms(self, folds: Sequence[StepFold]) -> HeldOut:
        """Return the predictions of the same folds with what their tables have of their own.

        Returns:
            Rows of all steps under test, with "position", "forward_ms", three times which is a
            baseline, and "plain_ms", the answer without trees.
        """
        parts = []
        for fold in folds:
            with np.load(self._kept(fold)) as file:
                found = dict(file)
            rows = [self.examples.rows[i] for i in fold.test]
            parts.append(
                pd.DataFrame(
                    {
                        "position": fold.test,
                        "row_id": [row.row_id for row in rows],
                        "arch_id": [row.architecture for row in rows],
                        "family_id": [row.family for row in rows],
                        "fold": fold.name,
                        "latency_ms": [row.latency_ms for row in rows],
                        "predicted latency_ms": np.exp(found["log_ms"]),
                        "plain_ms": np.exp(found["plain_log_ms"]),
                        "forward_ms": found["forward_ms"],
                    }
                )
            )
        name = folds[0].split
        return HeldOut("with own terms", name, pd.concat(parts, ignore_index=True), 0.0)

    def shipped(self, inference: Path) -> tuple[Multipliers, xgboost.Booster]:
        """Fit on all rows.

        Args:
            inference: checkpoint to start from.
        """
        everything = np.arange(len(self.examples.rows))
        started = Started.of(self.examples, Base.load(inference))
        return fit_step(self.examples, started, everything, self.settings)

    def _checkpoint(self, fold: StepFold) -> Path:
        """Return the folder of a fold's checkpoint; it is fitted and written if it is not there."""
        folder = self.folder / f"{fold.file}.checkpoint" / "0.0.0"
        if not (folder / "config.json").exists():
            examples, settings = self.examples, self.settings
            base = Base.load(fold.inference)
            started = Started.of(examples, base)
            fitted = fit_step(examples, started, fold.train, settings)
            given = started, fold.test, *fitted
            log_ms, plain = predict_step(examples, *given, settings.trees.reach)
            keep_arrays(
                self._kept(fold),
                log_ms=log_ms,
                plain_log_ms=plain,
                forward_ms=_forward_ms(examples, started)[fold.test],
            )
            config = step_configuration(
                base.predictor.config,
                fitted[0],
                settings,
                examples.only(fold.train),
                self.memory,
                NO_WIDTHS,
            )
            tensors = step_tensors(fold.inference, fitted[1], examples.only(fold.train))
            save_checkpoint(folder, tensors, {**config, "card": CARD}, METRICS)
        return folder

    def _kept(self, fold: StepFold) -> Path:
        return self.folder / f"{fold.file}.npz"


def _forward_ms(examples: StepExamples, started: Started) -> Floats:
    """Return what the law of inference says of the forward pass of each row, in ms, shape (R,)."""
    times = np.exp(examples.log_roofline + started.slow + started.added) * examples.count
    forward = np.where(examples.part == _FORWARD, times, 0.0)
    sums = np.bincount(examples.row_of, forward, len(examples.rows))
    host = examples.launches[:, 0] * started.launch_ms
    return np.asarray(np.maximum(sums, host) + started.copy_ms)
