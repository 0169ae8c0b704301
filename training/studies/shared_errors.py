"""Correlation of a model's errors between GPUs, which a choice between GPUs depends on.

    python -m training.studies.shared_errors WORK [--results training/studies/results/X.json]

WORK is the folder with `held_out.parquet` that `training.hybrid.train` wrote. Log errors of the
same model, batch, precision, mode and layout on two places, each over the standard deviation that
its interval states, are paired; "shared" is their correlation by ranks (2 sin(π ρ / 6), as of a
normal copula, which is robust to outliers) with a 95 % interval over architectures. Pairs
are of

    measured    two GPUs that train, the architecture held out on both (S1)
    families    the same with the family held out (S2)
    new         two GPUs that were held out themselves (S3a)
    one new     one of S1 and one of S3a
    slices      two slices of one GPU (S1)

"covered" is the share of ratios of the two measured times in the 90 % interval that the two
predictions imply with the correlation of `dippm.decide.choice.probability`, and "apart" the same
without correlation. "sure" and "right" compare the probability that the place with the smaller
prediction is the faster one with its observed frequency.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from math import pi
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from dippm.decide.choice.probability import UncertainValue, correlation
from dippm.estimate.models.targets import two_sided
from training.evaluation.held_out import half_width, read_held_out

Floats = NDArray[np.float64]
KEY = ["model", "batch", "precision", "mode", "layout", "timer"]
LEVEL = 0.9
Z90 = two_sided(LEVEL)
FEWEST = 20
RESAMPLES = 500
SEED = 7
KINDS = {
    "measured": ("S1", "S1"),
    "families": ("S2-10", "S2-10"),
    "new": ("S3a", "S3a"),
    "one new": ("S1", "S3a"),
    "slices": ("S1", "S1"),
}


@dataclass(frozen=True, slots=True)
class Shared:
    """Correlation of the errors of pairs.

    Attributes:
        kind: see the top of this module.
        places: the two GPUs, or the GPU whose slices they are; "all" for every pair of a kind.
        n: number of pairs.
        architectures: number of different architectures.
        shared: correlation of the errors.
        low, high: 95 % interval of `shared`.
        covered: share of ratios inside their 90 % interval.
        apart: `covered` without correlation.
        sure: mean probability that the place with the smaller prediction is faster.
        right: observed frequency of the same.
    """

    kind: str
    places: str
    n: int
    architectures: int
    shared: float
    low: float
    high: float
    covered: float
    apart: float
    sure: float
    right: float


def standardised(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model and place of each split: z, sd, and the two times in logs."""
    models = rows[rows["kind"] == "model"].copy()
    models["mig"] = models["mig"].fillna("")
    models["sd"] = models[half_width(LEVEL)] / Z90
    models["error"] = np.log(models["predicted_ms"] / models["measured_ms"])
    models["z"] = models["error"] / models["sd"]
    models["log_predicted"] = np.log(models["predicted_ms"])
    models["log_measured"] = np.log(models["measured_ms"])
    keys = ["split", "gpu", "mig", "architecture", *KEY]
    columns = ["z", "sd", "log_predicted", "log_measured"]
    return models.groupby(keys, as_index=False)[columns].mean()


def pairs_of(rows: pd.DataFrame, kind: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the pairs of a kind: the places, and a row per model with columns of both."""
    first, second = (rows[rows["split"] == split] for split in KINDS[kind])
    if kind == "slices":
        for gpu, mine in first.groupby("gpu"):
            slices = sorted(set(mine["mig"]) - {""})
            found = [_joined(mine, mine, a, b, "mig") for a, b in combinations(slices, 2)]
            if found:
                yield str(gpu), pd.concat(found)
        return
    first, second = (part[part["mig"] == ""] for part in (first, second))
    gpus = sorted(set(first["gpu"]) | set(second["gpu"]))
    for a, b in combinations(gpus, 2):
        found = [_joined(first, second, a, b, "gpu")]
        if kind == "one new":
            found.append(_joined(first, second, b, a, "gpu"))
        pairs = pd.concat(found)
        if len(pairs) >= FEWEST:
            yield f"{a} {b}", pairs


def _joined(first: pd.DataFrame, second: pd.DataFrame, a: str, b: str, by: str) -> pd.DataFrame:
    left, right = first[first[by] == a], second[second[by] == b]
    return left.merge(right, on=["architecture", *KEY], suffixes=("_a", "_b"))


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return the correlation of a normal copula with the rank correlation of two samples."""
    ranks = [pd.Series(x).rank().to_numpy() for x in (a, b)]
    return float(2 * np.sin(pi / 6 * np.corrcoef(*ranks)[0, 1]))


def shared(kind: str, places: str, pairs: pd.DataFrame) -> Shared:
    """Return the correlation of the errors of pairs."""
    a, b = pairs["z_a"].to_numpy(), pairs["z_b"].to_numpy()
    low, high = _resampled(pairs)
    found = correlation(*_described(kind))
    sd_a, sd_b = pairs["sd_a"].to_numpy(), pairs["sd_b"].to_numpy()
    predicted = (pairs["log_predicted_b"] - pairs["log_predicted_a"]).to_numpy()
    measured = (pairs["log_measured_b"] - pairs["log_measured_a"]).to_numpy()

    def spread(rho: float) -> Floats:
        return np.asarray(np.sqrt(sd_a**2 + sd_b**2 - 2 * rho * sd_a * sd_b))

    def covered(rho: float) -> float:
        return float((np.abs(predicted - measured) <= Z90 * spread(rho)).mean())

    cdf = np.vectorize(NormalDist().cdf)
    return Shared(
        kind=kind,
        places=places,
        n=len(pairs),
        architectures=int(pairs["architecture"].nunique()),
        shared=rank_correlation(a, b),
        low=low,
        high=high,
        covered=covered(found),
        apart=covered(0.0),
        sure=float(cdf(np.abs(predicted) / spread(found)).mean()),
        right=float((np.sign(predicted) == np.sign(measured)).mean()),
    )


def _described(kind: str) -> tuple[UncertainValue, UncertainValue]:
    """Return two places as the model of a choice sees them."""
    new = {"new": (False, False), "one new": (True, False)}.get(kind, (True, True))
    boards = ("a", "a") if kind == "slices" else ("a", "b")
    one, other = (
        UncertainValue(name, board, 0.0, 1.0, measured=measured)
        for name, board, measured in zip("ab", boards, new, strict=True)
    )
    return one, other


def _resampled(pairs: pd.DataFrame) -> tuple[float, float]:
    """Return the 95 % interval of the correlation by bootstrap over architectures."""
    random = np.random.default_rng(SEED)
    groups = list(pairs.reset_index(drop=True).groupby("architecture").indices.values())
    a, b = pairs["z_a"].to_numpy(), pairs["z_b"].to_numpy()
    found = []
    for _ in range(RESAMPLES):
        drawn = random.integers(len(groups), size=len(groups))
        places = np.concatenate([groups[i] for i in drawn])
        found.append(rank_correlation(a[places], b[places]))
    low, high = np.nanquantile(found, [0.025, 0.975])
    return float(low), float(high)


def findings(rows: pd.DataFrame) -> list[Shared]:
    """Return every pair of places of each kind, then all of a kind together."""
    table = standardised(rows)
    found = []
    for kind in KINDS:
        parts = list(pairs_of(table, kind))
        found += [shared(kind, places, pairs) for places, pairs in parts]
        if len(parts) > 1:
            found.append(shared(kind, "all", pd.concat([pairs for _, pairs in parts])))
    return found


def table_of(found: list[Shared]) -> Table:
    """Return the findings for a terminal."""
    names = ("kind", "places", "n", "architectures", "shared", "95 %", "covered", "apart", "sure",
             "right")  # fmt: skip
    table = Table(*names, title="errors of one model on two places")
    for one in found:
        cells = [one.kind, one.places, str(one.n), str(one.architectures), f"{one.shared:.2f}"]
        cells += [f"{one.low:.2f} to {one.high:.2f}"]
        cells += [f"{100 * x:.1f}" for x in (one.covered, one.apart, one.sure, one.right)]
        table.add_row(*cells)
    return table


def main(
    work: Annotated[Path, typer.Argument(help="folder with held_out.parquet")],
    results: Annotated[Path | None, typer.Option(help="JSON file to write")] = None,
) -> None:
    """Print the correlations."""
    console = Console(width=None if Console().is_terminal else 170, highlight=False)
    found = findings(read_held_out(work))
    console.print(table_of(found))
    if results is not None:
        lines = ",\n".join(f" {json.dumps(_rounded(one))}" for one in found)
        results.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _rounded(one: Shared) -> dict[str, Any]:
    return {n: round(v, 3) if isinstance(v, float) else v for n, v in asdict(one).items()}


if __name__ == "__main__":
    typer.run(main)
