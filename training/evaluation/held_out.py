"""Predictions for rows that did not train, in memory and as a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dippm.errors import DippmError

FILE = "held_out.parquet"
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Nominal coverages of intervals."""
BASELINE = "baseline "
"""Prefix of the columns with the predictions of simple predictors, in ms."""
COLUMNS = (
    "split", "fold", "row_id", "kind", "source", "table", "question", "gpu", "mig", "precision",
    "mode", "layout", "timer", "family", "architecture", "model", "batch", "gflop", "launches",
    "measured_ms", "predicted_ms", "bound", "host_share", "costliest",
)  # fmt: skip
"""Columns of the file. "kind" is one of KINDS, "question" the question of a user that a split
answers with this row, "gflop" the work of one step, "bound" the resource that takes most of its
time, "host_share" the launch time over the latency."""
KINDS = ("model", "module", "operator")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Predictions of one predictor for every test row of a split.

    Attributes:
        predictor: name for people.
        split: name of the split, for instance "S1".
        rows: "row_id", "arch_id", "family_id", "fold", and for each target T the columns T
            (measured) and "predicted T"; NaN where there is no label.
        seconds: duration of training.
    """

    predictor: str
    split: str
    rows: pd.DataFrame
    seconds: float


def half_width(level: float) -> str:
    """Return the column of the log half widths of intervals of a level."""
    return f"log half width {level:g}"


def write_held_out(work: Path, rows: pd.DataFrame) -> Path:
    """Write the rows of all splits into a working folder, and return the file.

    Raises:
        ValueError: if a column is missing.
    """
    _check(rows)
    work.mkdir(parents=True, exist_ok=True)
    path = work / FILE
    rows.to_parquet(path, index=False)
    return path


def read_held_out(work: Path) -> pd.DataFrame:
    """Return the rows that `write_held_out` wrote into a working folder.

    Raises:
        DippmError: if there is no such file, or it is of another version.
    """
    path = work / FILE
    hint = "python -m training.hybrid.train writes it with --work."
    if not path.is_file():
        raise DippmError(f"no held-out predictions: {path} does not exist", hint)
    rows = pd.read_parquet(path)
    try:
        _check(rows)
    except ValueError as error:
        raise DippmError(f"cannot read {path}: {error}", hint) from error
    return rows


def _check(rows: pd.DataFrame) -> None:
    wanted = (*COLUMNS, *map(half_width, LEVELS))
    missing = [name for name in wanted if name not in rows.columns]
    if missing:
        raise ValueError(f"columns are missing: {', '.join(missing)}")
