"""Prediction errors for measured rows of models whose graph is available."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from dippm import api, devices
from dippm.base.progress import tell
from dippm.errors import ConditionsError, UnknownNameError
from dippm.estimate.conditions import Conditions
from dippm.estimate.pretrained import for_device
from dippm.measure.collected.rows import Joined

if TYPE_CHECKING:
    import pandas as pd


TARGETS = ("latency_ms", "energy_j", "memory_mb")
MOST_ROWS = 2000


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """Measured and predicted value, with interval, of one row and target."""

    target: str
    family: str
    model: str
    batch: int
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def ape(self) -> float:
        """Absolute percentage error."""
        return 100 * abs(self.predicted / self.measured - 1)


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """Prediction errors of a set.

    Attributes:
        checkpoint: "name version"; "" if nothing was predicted.
        points: one point per row and target that has both values.
        absent: number of rows without a prediction, by reason.
        remarks: remarks on the errors.
    """

    checkpoint: str = ""
    points: tuple[PredictedRow, ...] = ()
    absent: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def errors(self) -> list[dict[str, Any]]:
        """Return the errors of each target, in total and by family."""
        lines = []
        for target in TARGETS:
            mine = [point for point in self.points if point.target == target]
            families = sorted({point.family for point in mine})
            for family in (None, *families) if mine else ():
                chosen = [p for p in mine if family in (None, p.family)]
                lines.append({"target": target, "family": family or "all", **_errors(chosen)})
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `--json`: errors without points."""
        return {
            "checkpoint": self.checkpoint,
            "points": len(self.points),
            "errors": self.errors(),
            "absent": dict(self.absent),
            "remarks": list(self.remarks),
        }


def compare(
    rows: pd.DataFrame,
    joined: Joined,
    *,
    checkpoint: str | Path | None = None,
    most_rows: int = MOST_ROWS,
) -> PredictionErrors:
    """Predict usable rows of models, and compare with the measured values.

    Args:
        rows: usable rows.
        joined: source of the graphs.
        checkpoint: name or folder; None takes the one that was trained on the devices of the rows,
            see `dippm.estimate.pretrained.store`.
        most_rows: number of rows above which only every n-th is predicted, by model and batch.

    Raises:
        UnknownNameError: if no checkpoint has this name.
        CheckpointError: if it is damaged or of another version.
    """
    models = rows[(rows["kind"] == "model") & (rows["phase"] == "inference")]
    if not joined.graphs:
        why = (
            "no graphs: `python -m dataset.build_collected DIR` makes them, "
            "--joined names its output"
        )
        return PredictionErrors(
            absent={why: len(models)} if len(models) else {"no model was measured": 0}
        )
    chosen = models.sort_values(["model", "batch", "row_id"])
    step = max(1, math.ceil(len(chosen) / most_rows))
    loaded = api.load(checkpoint or _suiting(chosen))
    absent: Counter[str] = Counter()
    points: list[PredictedRow] = []
    groups = chosen.iloc[::step].groupby("model", sort=False)
    for number, (model, part) in enumerate(groups, 1):
        tell(f"predicting model {number} of {len(groups)}")
        points += _points(loaded, str(model), part.to_dict("records"), joined, absent)
    config = loaded.checkpoint.config
    name = f"{loaded.checkpoint.name} {loaded.checkpoint.version}"
    return PredictionErrors(
        name, tuple(points), dict(absent), tuple(_remarks(config, chosen, step))
    )


def _points(
    loaded: api.LoadedPredictor,
    model: str,
    rows: list[dict[Any, Any]],
    joined: Joined,
    absent: Counter[str],
) -> Iterator[PredictedRow]:
    model_graph = joined.read_graph(model)
    for row in rows:
        try:
            if model_graph is None:
                raise ConditionsError(
                    "no graph of the model", "`python -m dataset.build_collected DIR` makes it."
                )
            (estimates,) = loaded.checkpoint.predictor.predict_many(model_graph, [_conditions(row)])
        except (ConditionsError, UnknownNameError) as error:
            absent[error.message] += 1
            continue
        for target in TARGETS:
            if target in estimates.values and row[target] and row[target] > 0:
                estimate = estimates.values[target]
                between = estimate.interval
                yield PredictedRow(
                    target,
                    str(row["family"]),
                    model,
                    int(row["batch"]),
                    float(row[target]),
                    estimate.value,
                    between.low,
                    between.high,
                )
            elif target not in estimates.values:
                absent[f"{target}: {estimates.absent.get(target, 'not predicted')}"] += 1


def _conditions(row: Mapping[Any, Any]) -> Conditions:
    device = devices.find(row["device"])
    if row["mig_profile"]:
        slices = {profile.name: profile for profile in device.mig_profiles}
        if row["mig_profile"] not in slices:
            raise UnknownNameError.of(f"slice of {device.name}", row["mig_profile"], slices)
        mig = slices[row["mig_profile"]]
    else:
        mig = None
    layout = bool(row["channels_last"])
    return Conditions(
        device=device,
        batch=int(row["batch"]),
        precision=row["precision"],
        mode=row["mode"],
        mig=mig,
        channels_last=layout,
    )


def _suiting(rows: pd.DataFrame) -> Path | None:
    """Return the shipped checkpoint that was trained on all devices of the rows, if any."""
    try:
        chosen = {for_device(devices.find(name)).path for name in rows["device"].unique()}
    except UnknownNameError:
        return None
    return chosen.pop() if len(chosen) == 1 else None


def _remarks(config: Mapping[str, Any], rows: pd.DataFrame, step: int) -> Iterator[str]:
    trained = set(config.get("trained_on", {}).get("campaigns", ()))
    if trained & set(rows["campaign"]):
        yield (
            "This checkpoint was trained on rows of this set, so these are errors of a fit, not of "
            "predictions; its card has the errors on what was held out."
        )
    if step > 1:
        yield f"One row in {step} was predicted."


def _errors(points: list[PredictedRow]) -> dict[str, float]:
    apes = [point.ape for point in points]
    inside = [point.low <= point.measured <= point.high for point in points]
    ratios = [math.log(point.predicted / point.measured) for point in points]
    return {
        "n": len(points),
        "models": len({point.model for point in points}),
        "median_ape": median(apes),
        "mape": mean(apes),
        "log_bias": mean(ratios),
        "coverage": mean(inside),
    }
