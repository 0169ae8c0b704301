"""Fit `dippm/decide/language/corrections.safetensors`, and print errors on layers left out.

    python -m training.language.corrections [--data-dir DIR] [--per-group 1500] [--write]

Rows are those of AIConfigurator and Vidur as `training.language.operators` reads them. The trees
learn the log of measured time over the time by the shipped law without terms of tables; 5 folds by
shape, and by layer (the sizes of a matrix, the heads of an attention), tell what they are worth.
The law itself saw a sample of these tables when the checkpoint was trained (bf16 and fp16 rows, no
fp8, no windows, no caches in fp8), so its own column is no error on unseen rows; that of the trees
is one on unseen layers, on top of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from dippm.decide.language import corrections
from dippm.decide.language.clock import KernelClock, with_eight_bits
from dippm.estimate import pretrained
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import (
    KERNEL_FEATURE_VERSION,
    N_KINDS,
    DeviceView,
    kernel_features,
)
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.hybrid import Hybrid
from training.hybrid.fit.tree_arrays import tree_arrays
from training.language.operators import FOLDS, OperatorRow, operator_rows

Floats = NDArray[np.float64]
DEPTH, ROUNDS, REACH = 8, 240, 1.5
PARAMETERS = {
    "max_depth": DEPTH, "eta": 0.08, "subsample": 0.8, "colsample_bynode": 0.8,
    "min_child_weight": 12.0, "lambda": 2.0, "tree_method": "hist", "seed": 0, "nthread": 1,
    "base_score": 0.0, "objective": "reg:pseudohubererror", "huber_slope": 0.15,
}  # fmt: skip


def by_law(rows: Sequence[OperatorRow], hybrid: Hybrid) -> tuple[Floats, NDArray[np.float32]]:
    """Return log ms of the law by itself, shape (N,), and features of the kernels, (N, F)."""
    clocks: dict[str, KernelClock] = {}
    times, features = [], []
    for row in rows:
        name = row.device.name
        if name not in clocks:
            conditions = Conditions(device=row.device, batch=1, precision="fp16")
            clocks[name] = KernelClock(hybrid, conditions, "graph", None)
        times.append(np.log(clocks[name].time(row.kernel).ms))
        view = DeviceView.of(with_eight_bits(row.device))
        features.append(kernel_features(KernelTable.of_kernels([row.kernel]), 1, view)[0])
    return np.array(times), np.stack(features)


def fitted(
    features: NDArray[np.float32], residual: Floats, weight: Floats
) -> dict[str, NDArray[Any]]:
    """Return the tensors of trees for a log residual."""
    import xgboost

    kind = features[:, :N_KINDS].argmax(axis=1)
    classes = np.zeros(N_KINDS, dtype=np.float32)
    for c in np.unique(kind):
        classes[c] = np.median(residual[kind == c])
    data = xgboost.DMatrix(features, residual - classes[kind], weight=weight)
    booster = xgboost.train(PARAMETERS, data, ROUNDS)
    arrays = tree_arrays(booster)
    arrays = {**arrays, "classes": classes, "feature": arrays["feature"].astype(np.int8)}
    arrays["value"] = arrays["value"].astype(np.float16)
    return {f"trees.{name}": array for name, array in arrays.items()}


def weights_of(rows: Sequence[OperatorRow]) -> Floats:
    """Return the weight of each row: every GPU and operator counts the same."""
    keys = [(row.device.name, row.operator) for row in rows]
    count = {key: keys.count(key) for key in set(keys)}
    found = np.array([1.0 / count[key] for key in keys])
    return np.asarray(found * len(rows) / found.sum())


def metadata_of(features: NDArray[np.float32]) -> dict[str, str]:
    """Return what the file says of its trees."""
    seen = set(features[:, :N_KINDS].argmax(axis=1).tolist())
    names = [name for i, name in enumerate(KERNEL_CLASSES) if i in seen]
    return {
        "features": KERNEL_FEATURE_VERSION,
        "depth": str(DEPTH),
        "reach": str(REACH),
        "classes": " ".join(names),
        "made_by": "python -m training.language.corrections --write",
        "sources": "ai-dynamo/aiconfigurator (Apache-2.0), microsoft/vidur (MIT)",
    }


def held_out(
    rows: Sequence[OperatorRow], features: NDArray[np.float32], residual: Floats, by: str
) -> Floats:
    """Return what trees that never saw a row's layer, or shape, add to its log time, (N,)."""
    fold, taught = np.array([row.fold(by) for row in rows]), np.array([r.taught for r in rows])
    weight, added = weights_of(rows), np.zeros(len(rows))
    for one in range(FOLDS):
        train, test = taught & (fold != one), fold == one
        if not test.any():
            continue
        tensors = fitted(features[train], residual[train], weight[train])
        found = corrections.Corrections.from_tensors(tensors, metadata_of(features[train]))
        assert found is not None
        added[test] = found.log_factor(features[test])
    return added


def table_of(rows: Sequence[OperatorRow], law: Floats, both: Floats, by: str) -> Table:
    """Return errors in per cent by operator and GPU; `law` and `both` are log errors, (N,)."""
    table = Table(
        "operator", "GPU", "software", "rows", "law mean", "law median", "mean", "median",
        "90 % below",
        title=f"error on {by}s that were left out, %",
    )  # fmt: skip
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, row in enumerate(rows):
        stack = row.software or row.source
        kind = "taught" if row.taught else "others"
        for key in (
            (row.operator, row.device.name, stack),
            (f"all {kind}", "", row.source),
            (f"all {kind} {row.kernel.kind}", "", row.source),
        ):
            groups.setdefault(key, []).append(i)
    for (operator, gpu, stack), which in sorted(groups.items()):
        before, after = (100 * np.abs(np.expm1(e[which])) for e in (law, both))
        table.add_row(
            operator, gpu, stack, f"{len(which):,}",
            *(f"{x:.1f}" for x in (before.mean(), np.median(before), after.mean(),
                                   np.median(after), np.percentile(after, 90))),
        )  # fmt: skip
    return table


def main(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the measured tables.")] = None,
    per_group: Annotated[int, typer.Option(help="Rows of each GPU, operator, software.")] = 1500,
    write: Annotated[
        bool, typer.Option("--write", help="Fit on all rows, write the file.")
    ] = False,
) -> None:
    """Fit and report."""
    rows = operator_rows(data_dir, per_group)
    hybrid = pretrained.load(pretrained.find(None).path).predictor
    assert isinstance(hybrid, Hybrid)
    law, features = by_law(rows, hybrid)
    measured = np.log([row.ms for row in rows])
    for by in ("shape", "layer"):
        added = held_out(rows, features, measured - law, by)
        Console(width=140).print(table_of(rows, law - measured, law + added - measured, by))
    if write:
        from safetensors.numpy import save_file

        taught = np.array([row.taught for row in rows])
        weight = weights_of(rows)[taught]
        tensors = fitted(features[taught], (measured - law)[taught], weight)
        path = Path(corrections.__file__).parent / corrections.FILE
        save_file(tensors, path, metadata=metadata_of(features))


if __name__ == "__main__":
    typer.run(main)
