"""Fits of every fold; each is kept, so that a run that was cut off goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xgboost
from numpy.typing import NDArray
from rich.progress import Progress

from dippm.features.kernel import PARTS
from training.evaluation.held_out import HeldOut
from training.hybrid.fit.novelty import novelties
from training.steps.base import SHIPPED, InferenceFits
from training.steps.examples import StepExamples
from training.steps.fit import Multipliers, Started, StepSettings, fit_step, predict_step
from training.steps.splits import StepFold

Floats = NDArray[np.float64]
_FORWARD = PARTS.index("forward")


@dataclass(frozen=True, slots=True)
class StepRunner:
    """Fits folds and reads back what they predicted.

    Attributes:
        examples: all rows.
        fits: of inference.
        folder: where fits are kept.
        settings: of the fits.
    """

    examples: StepExamples
    fits: InferenceFits
    folder: Path
    settings: StepSettings

    def run(self, folds: Sequence[StepFold]) -> None:
        """Fit what is not yet on disk, one after another."""
        self.folder.mkdir(parents=True, exist_ok=True)
        todo = [fold for fold in folds if not self._path(fold).exists()]
        with Progress() as progress:
            bar = progress.add_task("fits of training steps", total=len(todo))
            for fold in todo:
                self._fit(fold)
                progress.update(bar, advance=1, description=f"fits (last: {fold.file[:40]})")

    def shipped(self) -> tuple[Multipliers, xgboost.Booster]:
        """Fit on all rows, or read what was fitted."""
        weights, numbers = self.folder / "shipped.ubj", self.folder / "shipped.json"
        if not numbers.exists():
            everything = np.arange(len(self.examples.rows))
            started = Started.of(self.examples, self.fits.fit(SHIPPED))
            found, booster = fit_step(self.examples, started, everything, self.settings)
            booster.save_model(weights)
            document = {
                "log_slowdown": found.log_slowdown.tolist(),
                "log_launch": found.log_launch,
                "offsets": found.offsets,
            }
            numbers.write_text(json.dumps(document), encoding="utf-8")
        document = json.loads(numbers.read_text(encoding="utf-8"))
        slow = np.array(document.pop("log_slowdown"), dtype=np.float64)
        return Multipliers(slow, **document), xgboost.Booster(model_file=weights)

    def held_out(self, folds: Sequence[StepFold]) -> HeldOut:
        """Return the predictions of a split.

        Returns:
            Rows with "position", "spread", "host_share" and "novelty" as `Runner.held_out` has
            them, "forward_ms", three times which is a baseline, and "plain_ms", the answer without
            trees.
        """
        shares = self.examples.class_roofline_ms()
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
        gpus = np.array([step.row.device.name for step in self.examples.rows])
        parts = []
        for fold in folds:
            with np.load(self._path(fold)) as file:
                a = dict(file)
            rows = [self.examples.rows[i].row for i in fold.test]
            parts.append(
                pd.DataFrame(
                    {
                        "position": fold.test,
                        "row_id": [row.row_id for row in rows],
                        "arch_id": [row.architecture for row in rows],
                        "family_id": [row.family for row in rows],
                        "fold": fold.name,
                        "latency_ms": [row.latency_ms for row in rows],
                        "predicted latency_ms": np.exp(a["log_ms"]),
                        "plain_ms": np.exp(a["plain_log_ms"]),
                        "forward_ms": a["forward_ms"],
                        "spread": np.abs(a["log_ms"] - a["plain_log_ms"]) / 2,
                        "host_share": a["host_ms"] / np.exp(a["log_ms"]),
                        "novelty": novelties(shares, gpus, fold.train, fold.test)[:, 0],
                    }
                )
            )
        name = folds[0].split
        return HeldOut("shipped law", name, pd.concat(parts, ignore_index=True), 0.0)

    def _fit(self, fold: StepFold) -> None:
        e = self.examples
        started = Started.of(e, self.fits.fit(fold.inference))
        found, booster = fit_step(e, started, fold.train, self.settings)
        reach = self.settings.trees.reach
        log_ms, plain = predict_step(e, started, fold.test, found, booster, reach)
        launch = e.launches[fold.test] @ np.array([1.0, np.exp(found.log_launch)])
        unfinished = self._path(fold).with_suffix(".part.npz")
        np.savez(
            unfinished,
            log_ms=log_ms,
            plain_log_ms=plain,
            host_ms=launch * started.launch_ms[fold.test],
            forward_ms=_forward_ms(e, started)[fold.test],
        )
        unfinished.replace(self._path(fold))

    def _path(self, fold: StepFold) -> Path:
        return self.folder / f"{fold.file}.npz"


def _forward_ms(examples: StepExamples, started: Started) -> Floats:
    """Return what the law of inference says of the forward pass of each row, in ms, shape (R,)."""
    times = np.exp(examples.log_roofline + started.slow + started.added) * examples.count
    forward = np.where(examples.part == _FORWARD, times, 0.0)
    sums = np.bincount(examples.row_of, forward, len(examples.rows))
    host = examples.launches[:, 0] * started.launch_ms
    return np.asarray(np.maximum(sums, host) + started.copy_ms)
