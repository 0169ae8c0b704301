"""Fit how time and power change with the power limit, and say how wrong that is on other GPUs.

Run: python -m training.hybrid.fit.power_limit --data DATA

The table is Zeus' (NSDI 2023, github.com/ml-energy/zeus, Apache-2.0): time per epoch and mean board
power of training runs at several limits, A40, V100, P100 and Quadro RTX 6000. A run is compared
with the same run at the board's highest limit. Errors are those of laws fitted without the GPU
that they are tried on.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dataset.measured.location import table_path
from dippm.errors import DippmError
from dippm.estimate.models.intervals import COVERAGE
from dippm.estimate.models.power_limit import FILE, Band, PowerLimitLaw

TABLE = "nsdi23_power_limit_sweep.csv"
OUT = Path(__file__).resolve().parents[3] / "dippm" / "estimate" / "models" / FILE
RUN = ["gpu", "dataset", "network", "batch_size", "optimizer"]
START = PowerLimitLaw(0.15, 0.8, 4.0, 1.0, 1.0, 6.0)
TIME = ("idle_share", "knee", "sharpness", "slope")
POWER = ("reach", "bend")
SHARES = (0.5, 0.33)


def points(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run and lowered limit, with ratios to the run at the highest limit."""
    highest = table.groupby("gpu")["power_limit_w"].transform("max")
    table = table.assign(highest_w=highest)
    full = table[table["power_limit_w"] == table["highest_w"]].groupby(RUN)
    full = full[["time_per_epoch_s", "avg_power_w"]].first().add_suffix("_full")
    joined = table[table["power_limit_w"] < table["highest_w"]].join(full, on=RUN)
    joined = joined.dropna(subset=["time_per_epoch_s_full"])
    return pd.DataFrame(
        {
            "gpu": joined["gpu"],
            "network": joined["network"],
            "limit_w": joined["power_limit_w"].astype(float),
            "highest_w": joined["highest_w"].astype(float),
            "power_w": joined["avg_power_w_full"],
            "log_time": np.log(joined["time_per_epoch_s"] / joined["time_per_epoch_s_full"]),
            "log_power": np.log(joined["avg_power_w"] / joined["avg_power_w_full"]),
        }
    )


def fit(rows: pd.DataFrame) -> PowerLimitLaw:
    """Fit both curves; a soft loss, for short epochs are noisy."""
    from scipy.optimize import least_squares

    def solved(names: tuple[str, ...], target: str) -> dict[str, float]:
        def residual(logarithms: np.ndarray) -> Any:
            values = dict(zip(names, np.exp(logarithms), strict=True))
            return errors(replace(START, **values), rows)[target]

        start = np.log([getattr(START, name) for name in names])
        found = least_squares(residual, start, loss="soft_l1", f_scale=0.1).x
        return dict(zip(names, np.exp(found).tolist(), strict=True))

    return PowerLimitLaw(**solved(TIME, "time"), **solved(POWER, "power"))


def errors(law: PowerLimitLaw, rows: pd.DataFrame) -> pd.DataFrame:
    """Return log(predicted / measured) of time, power and energy."""
    slow = law.log_slowdown(rows["limit_w"], rows["power_w"], rows["highest_w"])
    time = slow - rows["log_time"]
    power = law.log_power_ratio(rows["limit_w"], rows["power_w"]) - rows["log_power"]
    return pd.DataFrame({"time": time, "power": power, "energy": time + power})


def left_out(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the errors of each group by the law that was fitted to the others."""
    return pd.concat(
        errors(fit(rows[rows[column] != name]), part) for name, part in rows.groupby(column)
    )


def bands(rows: pd.DataFrame, wrong: pd.DataFrame) -> list[Band]:
    """Return the 90 % errors by the share of the highest limit, among limits that bind."""
    share, found, above = rows["limit_w"] / rows["highest_w"], [], 1.0
    for lowest in SHARES:
        binds = (rows["limit_w"] < rows["power_w"]) & (share >= lowest) & (share < above)
        mine = wrong[binds].abs().quantile(COVERAGE).round(4)
        found.append(Band(lowest, mine["time"], mine["power"], mine["energy"], int(binds.sum())))
        above = lowest
    return found


def summary(rows: pd.DataFrame, wrong: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return median and 90 % errors in percent, of limits that bind and are half or more."""
    chosen = (rows["limit_w"] < rows["power_w"]) & (rows["limit_w"] >= 0.5 * rows["highest_w"])
    percent = 100 * np.expm1(wrong[chosen].abs())
    quantiles = percent.quantile([0.5, COVERAGE]).round(1).set_axis(["median", "p90"])
    return {str(name): column.to_dict() for name, column in quantiles.items()}


def main() -> int:
    """Write the law and print its errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the measured tables")
    try:
        table = pd.read_csv(table_path(parser.parse_args().data, "zeus", TABLE))
    except DippmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = points(table)
    by_gpu, by_network = left_out(rows, "gpu"), left_out(rows, "network")
    law = fit(rows)
    document = {
        "law": {name: round(value, 5) for name, value in asdict(law).items()},
        "bands": [asdict(band) for band in bands(rows, by_gpu.loc[rows.index])],
        "gpus": sorted(rows["gpu"].unique()),
        "errors_percent": {
            "GPU left out": summary(rows, by_gpu.loc[rows.index]),
            "network left out": summary(rows, by_network.loc[rows.index]),
        },
        "points": len(rows),
        "source": f"ml-energy/zeus, trace of NSDI 2023 (Apache-2.0): {TABLE}",
    }
    OUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
