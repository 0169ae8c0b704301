"""Fits the power model and states its errors; `power_samples` says what was measured.

python -m training.hybrid.fit.power --data ../shared/data --graphs build/graphs
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dataset.join.graph_store import GraphStore
from dataset.measured.location import DataNotFoundError
from dippm.devices import Device
from dippm.estimate.models.power import PowerModel, idle_power_w, silicon
from training.evaluation.metrics import absolute_percentage_errors
from training.hybrid.rows.absent_sources import tell_absent
from training.hybrid.rows.collected_power import collected_power
from training.hybrid.rows.collected_rows import CollectedSet
from training.hybrid.rows.power_samples import PowerSample, power_samples

Floats = NDArray[np.float64]
PRIOR = np.array([*np.log([0.3, 1.0, 1.0, 1.0, 0.5, 6.0]), 0.3, 1.0])
"""Logarithms of floor, coefficients of SHARES and sharpness, then waiting share and silicon
exponent, where no sample tells: a unit at its peak takes a board to its limit, the memory half of
the way; a board waits at the share of its limit that the law of lowered limits needs
(`dippm.estimate.models.power_limit`); power follows the silicon."""
SHRINKAGE = np.array([0.05] * 6 + [0.15, 0.15])
LEAST = np.array([*(PRIOR[:6] - 3), 0.0, 0.0])
MOST = np.array([*(PRIOR[:5] + 3), PRIOR[5] + 1.5, 0.6, 1.5])
OUTLIER = 0.1
"""Log error from which on a sample counts by its size, no longer by its square."""
FOLDS = 5
SPLITS = {
    "operators and models held out": "group",
    "GPU held out": "device",
    "source held out": "source",
}
POWER_TABLES = ("flagperf", "raphischer", "splitwise", "zeus")
"""Those that can be made of what is published, for a hint."""
STRICTEST = "source held out"
STATED = ("GPU held out", STRICTEST)
"""Splits whose errors make the interval: what a user's board is, or else its laboratory."""
Z90 = 1.645
DECIMALS = 5
"""Of fitted numbers: sums in another order, of other threads, end further behind the comma, and two
trainings shall give one checkpoint."""


def fit_power(samples: Sequence[PowerSample]) -> PowerModel:
    """Fit the law; every kind of work of every source and GPU weighs the same.

    The law is between idle power and limit of the board that was measured. Predictions, and so the
    errors below, take both from the catalogue, as a user does.
    """
    weights = np.sqrt(_cell_weights(samples))
    labels = np.log(_labels(samples))
    boards = [_board(s) for s in samples]
    idle = np.array([idle_power_w(board) for board in boards])
    limit = np.array([board.known("power_limit_w") for board in boards])
    waits = np.array([board.memory_family == "board" for board in boards])
    log_silicon = np.log([silicon(board) for board in boards])
    busy = np.array([s.busy for s in samples])
    shares = np.array([s.shares for s in samples])

    def residual(p: Floats) -> Floats:
        floor, coefficients, sharpness = np.exp(p[0]), np.exp(p[1:5]), np.exp(p[5])
        score = (floor + shares @ coefficients) * np.exp(p[7] * log_silicon)
        u = score / (1 + score**sharpness) ** (1 / sharpness)
        waiting = np.where(waits, np.maximum(idle, p[6] * limit), idle)
        error = np.log(waiting + (limit - waiting) * busy * u) - labels
        bent = OUTLIER * np.sqrt(2 * (np.hypot(1, error / OUTLIER) - 1))
        return np.concatenate([weights * np.sign(error) * bent, SHRINKAGE * (p - PRIOR)])

    found = least_squares(residual, PRIOR, bounds=(LEAST, MOST)).x
    floor, *coefficients, sharpness = np.round(np.exp(found[:6]), DECIMALS).tolist()
    waiting_share, exponent = np.round(found[6:], DECIMALS).tolist()
    return PowerModel(floor, tuple(coefficients), sharpness, 0.0, waiting_share, exponent)


def _board(sample: PowerSample) -> Device:
    """Return the board that ran: of the catalogue, with the idle power and limit that it had."""
    device = sample.device
    return replace(
        device,
        idle_power_w=sample.idle_w or device.idle_power_w,
        power_limit_w=sample.limit_w or device.power_limit_w,
    )


def _cell_weights(samples: Sequence[PowerSample]) -> Floats:
    """Return weights that sum to 1 over each kind of work of each source and GPU."""
    of = pd.Series([(s.source, s.device.name, s.kind) for s in samples])
    return np.asarray(1 / of.map(of.value_counts()).to_numpy(dtype=np.float64))


def log_spread(samples: Sequence[PowerSample], predicted: Sequence[Floats]) -> float:
    """Return the spread of log errors that covers 90 % of them, a kind of work as much as another.

    Args:
        samples: all of them.
        predicted: power of each sample where it was held out, once for each split.
    """
    errors = np.concatenate([np.abs(np.log(p / _labels(samples))) for p in predicted])
    weights = np.tile(_cell_weights(samples), len(predicted))
    order = np.argsort(errors)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(errors[order][np.searchsorted(reached, 0.9)]) / Z90


def predictions(model: PowerModel, samples: Sequence[PowerSample]) -> Floats:
    """Return the predicted power of each sample, in W, shape (len(samples),)."""
    return np.array([model.power_w(s.device, s.busy, s.shares) for s in samples])


def constant_share(samples: Sequence[PowerSample], others: Sequence[PowerSample]) -> Floats:
    """Return the baseline: the median share of the limit that `others` drew, in W."""
    share = np.median([s.power_w / s.device.known("power_limit_w") for s in others])
    return np.array([share * s.device.known("power_limit_w") for s in samples])


def held_out(samples: Sequence[PowerSample], split: str) -> tuple[Floats, Floats]:
    """Return (predicted, baseline) power of each sample by fits without its part of the split."""
    part = _parts(samples, split)
    predicted, baseline = np.zeros(len(samples)), np.zeros(len(samples))
    for k in sorted(set(part)):
        inside = [i for i, p in enumerate(part) if p == k]
        others = [s for s, p in zip(samples, part, strict=True) if p != k]
        mine = [samples[i] for i in inside]
        predicted[inside] = predictions(fit_power(others), mine)
        baseline[inside] = constant_share(mine, others)
    return predicted, baseline


def _parts(samples: Sequence[PowerSample], split: str) -> list[str]:
    if SPLITS[split] == "source":
        return [s.source for s in samples]
    if SPLITS[split] == "device":
        return [s.device.name for s in samples]
    groups = np.random.default_rng(0).permutation(sorted({s.group for s in samples})).tolist()
    fold = {group: str(i % FOLDS) for i, group in enumerate(groups)}
    return [fold[s.group] for s in samples]


def evaluate(
    samples: Sequence[PowerSample],
) -> tuple[PowerModel, list[dict[str, Any]]]:
    """Fit on all samples; the lines of the card are errors of what was held out.

    Raises:
        DataNotFoundError: if there are not two laboratories, two GPUs and two kinds of work to tell
            apart.
    """
    for split in SPLITS:
        if len(parts := set(_parts(samples, split))) < 2:
            raise DataNotFoundError(
                f"power cannot be judged with {split}: the tables at hand have rows of"
                f" {' '.join(parts) or 'none'} alone",
                f"`python -m dataset.fetch {' '.join(POWER_TABLES)}` gets tables with power.",
            )
    found = {split: held_out(samples, split) for split in SPLITS}
    log_error = log_spread(samples, [found[split][0] for split in STATED])
    model = replace(fit_power(samples), log_error=log_error)
    lines = []
    for split, (predicted, baseline) in found.items():
        lines += _lines(samples, split, predicted, baseline, log_error)
    return model, lines


def energy_lines(
    samples: Sequence[PowerSample], latency: pd.DataFrame, split: str
) -> list[dict[str, Any]]:
    """Return the errors of power × latency, both held out, where a table has both.

    Power sees the predicted time, too: a kernel that is predicted slower is predicted to draw less.

    Args:
        samples: all of them.
        latency: held-out predictions, with "row_id", "latency_ms" and "predicted latency_ms".
        split: split by which they were held out, for people.
    """
    known = latency.drop_duplicates("row_id").set_index("row_id")
    both = [s for s in samples if s.row_id in known.index]
    times = known.loc[[s.row_id for s in both], ["latency_ms", "predicted latency_ms"]]
    measured, predicted = times.to_numpy(dtype=np.float64).T
    ratio = measured / predicted
    seen = [
        replace(s, shares=tuple(min(1.0, share * r) for share in s.shares))
        for s, r in zip(both, ratio, strict=True)
    ]
    part = np.array(_parts(samples, STRICTEST))
    models = {k: fit_power([s for s in samples if s.source != k]) for k in set(part.tolist())}
    power = np.array([models[s.source].power_w(s.device, s.busy, s.shares) for s in seen])
    return [
        {**line, "target": "energy_j", "question": line["question"].replace("power", "energy", 1)}
        for line in _lines(
            [replace(s, power_w=s.power_w * t) for s, t in zip(both, measured, strict=True)],
            f"{STRICTEST} for power; latency: {split}",
            power * predicted,
            constant_share(both, samples) * predicted,
        )
    ]


def _lines(
    samples: Sequence[PowerSample],
    split: str,
    predicted: Floats,
    baseline: Floats,
    log_error: float | None = None,
) -> list[dict[str, Any]]:
    of = [(s.source, s.kind, s.device.name) for s in samples]
    lines = []
    for source, kind, gpu in sorted(set(of)):
        mine = np.array([o == (source, kind, gpu) for o in of])
        labels = _labels(samples)[mine]
        found, constant = (
            absolute_percentage_errors(labels, p[mine]) for p in (predicted, baseline)
        )
        lines.append(
            {
                "gpu": gpu,
                "target": "power_w",
                "data": f"{source}, {kind}",
                "split": split,
                "n": int(mine.sum()),
                "median_ape": round(float(np.median(found)), 2),
                "mape": round(float(found.mean()), 2),
                "median_log_error": round(float(np.median(np.log(predicted[mine] / labels))), 3),
                **_coverage(predicted[mine], labels, log_error),
                "constant_share_of_limit_mape": round(float(constant.mean()), 1),
                "question": f"power of {kind}" if split.startswith(STRICTEST) else None,
            }
        )
    return lines


def _coverage(predicted: Floats, labels: Floats, log_error: float | None) -> dict[str, float]:
    """Return the share of labels inside the 90 % interval of power, in percent; {} without one."""
    if log_error is None:
        return {}
    inside = np.abs(np.log(predicted / labels)) <= Z90 * log_error
    return {"coverage": round(100 * float(inside.mean()), 1)}


def _labels(samples: Sequence[PowerSample]) -> Floats:
    return np.array([s.power_w for s in samples])


def measured_power(
    data: Path, graphs: Path, collected: Sequence[CollectedSet] = ()
) -> list[PowerSample]:
    """Return everything of which power was measured, sets of our own included."""
    store = GraphStore(graphs)
    ours = [sample for found in collected for sample in collected_power(found, store)]
    return [*power_samples(data, store), *ours]


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
) -> None:
    """Print the fitted power model and its errors as JSON."""
    tell_absent(data)
    model, lines = evaluate(measured_power(data, graphs))
    typer.echo(json.dumps({"model": asdict(model), "errors, percent": lines}, indent=1))


if __name__ == "__main__":
    typer.run(main)
