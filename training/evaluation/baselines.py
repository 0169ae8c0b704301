"""What a predictor must beat: simple predictors, fitted on the same rows as the real ones.

    python -m training.evaluation.baselines --dataset build/dataset --graphs GRAPHS

Prints their errors on the reference table (timm on an RTX 3090, autocast, eager, one batch for
each model) for the splits S0, S1 and S2-20, on one table of three GPUs for S3a (one GPU out), and
writes them as JSON with `--out`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dataset.join.splits import Split
from dataset.measured.reference import gpu_rows, reference_rows
from dippm.devices import find
from training.evaluation.metrics import Grouped, grouped_errors

Floats = NDArray[np.float64]
SPLITS = ("S0", "S1", "S2-20", "S3a")
LOGGED = (
    "macs_per_sample",
    "flops_per_sample",
    "elements_per_sample",
    "param_bytes",
    "n_operators",
    "n_compute",
)
ROOFLINE_PREFIX = "roofline_ms:"
SEED = 42
TREES = {
    "max_depth": 5,
    "eta": 0.05,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "seed": SEED,
    "nthread": 1,
}
BYTES_PER_ELEMENT = 2
"""Under autocast to half precision, which the reference table was measured with."""


class Baseline(Protocol):
    """Fits on a table of rows with labels and totals; predicts latencies in ms."""

    def fit(self, rows: pd.DataFrame) -> None:
        """Fit on measured rows."""
        ...

    def predict(self, rows: pd.DataFrame) -> Floats:
        """Return a latency for each row, in ms."""
        ...


class FlopsProportional:
    """One number: milliseconds for each FLOP."""

    scale = 1.0

    def work(self, rows: pd.DataFrame) -> Floats:
        """Return what the latency shall be proportional to."""
        return np.asarray(rows["flops_per_sample"] * rows["batch"], dtype=float)

    def fit(self, rows: pd.DataFrame) -> None:
        """Take the median ratio."""
        self.scale = float(np.median(rows["latency_ms"] / self.work(rows)))

    def predict(self, rows: pd.DataFrame) -> Floats:
        """Return scale · FLOPs."""
        return self.scale * self.work(rows)


class ScaledRoofline(FlopsProportional):
    """One number: how much slower than max(FLOPs / peak, bytes / bandwidth) of the whole model."""

    def work(self, rows: pd.DataFrame) -> Floats:
        """Return the roofline of the totals, in ms."""
        return roofline_of_totals(rows)


class Ridge:
    """Ridge regression of the log latency on the logs of the totals."""

    penalty = 1e-2

    def fit(self, rows: pd.DataFrame) -> None:
        """Solve the normal equations of standardised features."""
        x, y = log_totals(rows), np.log(rows["latency_ms"].to_numpy(dtype=float))
        self.mean, self.deviation = x.mean(axis=0), x.std(axis=0) + 1e-9
        z = np.c_[np.ones(len(x)), (x - self.mean) / self.deviation]
        penalty = self.penalty * np.eye(z.shape[1])
        penalty[0, 0] = 0
        self.weights = np.linalg.solve(z.T @ z / len(z) + penalty, z.T @ y / len(z))

    def predict(self, rows: pd.DataFrame) -> Floats:
        """Return exp of the linear form."""
        z = (log_totals(rows) - self.mean) / self.deviation
        return np.asarray(np.exp(self.weights[0] + z @ self.weights[1:]))


class NearestNeighbour:
    """The label of the nearest training row. If this wins on a split, the split leaks."""

    def fit(self, rows: pd.DataFrame) -> None:
        """Keep the training rows."""
        x = log_totals(rows)
        self.mean, self.deviation = x.mean(axis=0), x.std(axis=0) + 1e-9
        self.x = (x - self.mean) / self.deviation
        self.y = rows["latency_ms"].to_numpy(dtype=float)

    def predict(self, rows: pd.DataFrame) -> Floats:
        """Return the labels of the nearest rows in log space."""
        z = (log_totals(rows) - self.mean) / self.deviation
        distance = ((z[:, None, :] - self.x[None, :, :]) ** 2).sum(axis=2)
        return np.asarray(self.y[distance.argmin(axis=1)])


class BoostedTrees:
    """Gradient-boosted trees on the totals; the target is relative to `reference`, in log."""

    def __init__(self, reference: Callable[[pd.DataFrame], Floats]) -> None:
        self.reference = reference

    def features(self, rows: pd.DataFrame) -> Floats:
        """Return what the trees see."""
        return log_totals(rows)

    def fit(self, rows: pd.DataFrame) -> None:
        """Fit with squared error in log space."""
        import xgboost

        target = np.log(rows["latency_ms"].to_numpy(dtype=float) / self.reference(rows))
        data = xgboost.DMatrix(self.features(rows), target)
        self.trees = xgboost.train(TREES, data, num_boost_round=400)

    def predict(self, rows: pd.DataFrame) -> Floats:
        """Return reference · exp(trees)."""
        import xgboost

        residual = self.trees.predict(xgboost.DMatrix(self.features(rows)))
        return np.asarray(self.reference(rows) * np.exp(residual))


class SeedFeatures(BoostedTrees):
    """Boosted trees on D3.5's five static features: MACs, batch, convolutions, dense, ReLU."""

    def __init__(self) -> None:
        super().__init__(_ones)

    def features(self, rows: pd.DataFrame) -> Floats:
        """Return the five of Eq. 1; MACs and batch in log."""
        counts = rows[["n_conv", "n_dense", "n_relu"]].to_numpy(dtype=float)
        macs = np.log(rows["macs_per_sample"] * rows["batch"] + 1)
        return np.asarray(np.c_[macs, np.log(rows["batch"]), counts], dtype=float)


class ClassMultipliers:
    """One factor for each class of executed kernels, over the roofline time of that class.

    Fitted to the relative error of the sum, with less weight on rows that fit badly (so that the
    median counts, not the outliers). A class that the training rows lack keeps the factor 1.
    """

    n_rounds = 20

    def fit(self, rows: pd.DataFrame) -> None:
        """Solve a non-negative least-squares problem, reweighted towards absolute errors."""
        from scipy.optimize import nnls

        x = roofline_columns(rows) / rows["latency_ms"].to_numpy(dtype=float)[:, None]
        present = x.sum(axis=0) > 0
        weight = np.ones(len(x))
        self.factors = np.ones(x.shape[1])
        for _ in range(self.n_rounds):
            root = np.sqrt(weight)
            found, _ = nnls(x[:, present] * root[:, None], root)
            self.factors[present] = found
            weight = 1 / np.maximum(np.abs(x @ self.factors - 1), 0.02)

    def predict(self, rows: pd.DataFrame) -> Floats:
        """Return the sum of factor · roofline over classes."""
        return np.asarray(roofline_columns(rows) @ self.factors)


class BoostedResidual(BoostedTrees):
    """Class multipliers, then boosted trees on the shares of the classes, in log."""

    def __init__(self) -> None:
        self.multipliers = ClassMultipliers()
        super().__init__(self.multipliers.predict)

    def features(self, rows: pd.DataFrame) -> Floats:
        """Return class shares and the totals."""
        x = roofline_columns(rows) * self.multipliers.factors
        return np.asarray(np.c_[x / x.sum(axis=1, keepdims=True), log_totals(rows)])

    def fit(self, rows: pd.DataFrame) -> None:
        """Fit the multipliers, then the trees."""
        self.multipliers.fit(rows)
        super().fit(rows)


def log_totals(rows: pd.DataFrame) -> Floats:
    """Return the logs of the static totals, batch and image included, shape (rows, 9)."""
    batch = rows["batch"].to_numpy(dtype=float)
    columns = [np.log(rows[name].to_numpy(dtype=float) + 1) for name in LOGGED]
    scaled = [np.log(rows[n] * batch + 1) for n in ("macs_per_sample", "elements_per_sample")]
    return np.asarray(np.stack([*columns, *scaled, np.log(batch)], axis=1), dtype=float)


def roofline_of_totals(rows: pd.DataFrame) -> Floats:
    """Return max(FLOPs / peak, bytes / bandwidth) of whole models in half precision, in ms."""
    devices = {name: find(name) for name in rows["gpu"].unique()}
    peak = rows["gpu"].map({name: d.known_rate("fp16") * 1e9 for name, d in devices.items()})
    bandwidth = rows["gpu"].map(
        {name: d.known("bandwidth_gb_s") * 1e6 for name, d in devices.items()}
    )
    flops = 2 * rows["macs_per_sample"] * rows["batch"]
    moved = 2 * BYTES_PER_ELEMENT * rows["elements_per_sample"] * rows["batch"]
    moved = moved + rows["param_bytes"]
    return np.asarray(np.maximum(flops / peak, moved / bandwidth), dtype=float)


def roofline_columns(rows: pd.DataFrame) -> Floats:
    """Return the class rooflines that `with_rooflines` added."""
    names = [name for name in rows.columns if name.startswith(ROOFLINE_PREFIX)]
    return np.asarray(rows[names], dtype=float)


def with_rooflines(rows: pd.DataFrame, times: Floats, classes: Iterable[str]) -> pd.DataFrame:
    """Return the rows with one column for each class of kernels."""
    columns = pd.DataFrame(times, columns=[ROOFLINE_PREFIX + c for c in classes], index=rows.index)
    return pd.concat([rows, columns], axis=1)


def _ones(rows: pd.DataFrame) -> Floats:
    return np.ones(len(rows))


BASELINES: Mapping[str, Callable[[], Baseline]] = {
    "FLOPs-proportional": FlopsProportional,
    "scaled roofline on totals": ScaledRoofline,
    "nearest neighbour": NearestNeighbour,
    "ridge, log-log": Ridge,
    "XGBoost, D3.5's five features": SeedFeatures,
    "XGBoost, static": lambda: BoostedTrees(_ones),
    "XGBoost / roofline": lambda: BoostedTrees(roofline_of_totals),
    "class multipliers": ClassMultipliers,
    "class multipliers + XGBoost": BoostedResidual,
}
"""By name, in the order in which tables list them."""


def held_out_predictions(
    make: Callable[[], Baseline], table: pd.DataFrame, split: Split
) -> tuple[Floats, pd.DataFrame]:
    """Return predictions for every test row of a split, and those rows.

    The validation part trains as well: nothing here stops early.
    """
    by_id = table.set_index("row_id", drop=False)
    predictions, tested = [], []
    for fold in split.folds:
        rows = by_id.loc[[*split.train(fold), *fold.validation]]
        test = by_id.loc[list(fold.test)]
        baseline = make()
        baseline.fit(rows)
        predictions.append(baseline.predict(test))
        tested.append(test)
    return np.concatenate(predictions), pd.concat(tested)


def evaluate(table: pd.DataFrame, split: Split) -> dict[str, Grouped]:
    """Return the errors of every baseline on a split, by family."""
    result = {}
    for name, make in BASELINES.items():
        predicted, rows = held_out_predictions(make, table, split)
        result[name] = grouped_errors(rows["latency_ms"], predicted, list(rows["family_id"]))
    return result


def load_table(dataset: Path, graphs: Path, *, gpus: bool = False) -> pd.DataFrame:
    """Return the reference table with class rooflines, which are cached beside it.

    Args:
        dataset: folder that `dataset.build` wrote.
        graphs: folder of raw graphs.
        gpus: the table of three GPUs instead.
    """
    from rich.progress import Progress

    from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
    from training.evaluation.class_rooflines import class_rooflines

    table = pd.read_parquet(dataset / "rows.parquet")
    rows = gpu_rows(table) if gpus else reference_rows(table)
    with Progress() as progress:
        task = progress.add_task("class rooflines", total=len(rows))
        times = class_rooflines(
            rows, graphs, dataset / "class_rooflines.npz", lambda: progress.advance(task)
        )
    return with_rooflines(rows, times, KERNEL_CLASSES)


def main() -> None:
    """Print and store the errors of all baselines."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dataset", type=Path, default=Path("build/dataset"))
    parser.add_argument("--graphs", type=Path, required=True)
    parser.add_argument("--splits", nargs="+", default=SPLITS)
    parser.add_argument("--out", type=Path, help="JSON file for the errors")
    arguments = parser.parse_args()
    document: dict[str, Any] = {}
    for name in arguments.splits:
        table = load_table(arguments.dataset, arguments.graphs, gpus=name.startswith("S3"))
        split = Split.load(arguments.dataset / "splits" / f"{name}.json")
        results = evaluate(table, split)
        shown = Table(title=f"{name}: {len(table):,} rows, {table['arch_id'].nunique():,} arch.")
        for column in ("baseline", "MAPE %", "median %", "macro %", "Acc(10) %", "bias", "tau"):
            shown.add_column(column, justify="left" if column == "baseline" else "right")
        for baseline, errors in results.items():
            e = errors.micro
            shown.add_row(
                baseline,
                f"{e.mape:.1f}",
                f"{e.median_ape:.1f}",
                f"{errors.macro.mape:.1f}",
                f"{e.acc10:.1f}",
                f"{e.log_bias:+.3f}",
                f"{e.tau:.3f}",
            )
        Console(width=100).print(shown)
        document[name] = {
            baseline: {"micro": g.micro.to_dict(), "macro": g.macro.to_dict(), "worst": g.worst}
            for baseline, g in results.items()
        }
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
