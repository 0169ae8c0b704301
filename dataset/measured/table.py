"""The common schema of all measured rows, and `Source`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from dataset.measured.location import DataNotFoundError, table_path

Timer = Literal["K", "E", "W", "C", "D"]

COLUMNS = (
    "row_id",
    "source",
    "gpu",
    "timer",
    "precision",
    "mode",
    "layout",
    "phase",
    "software",
    "model",
    "operator",
    "mig_profile",
    "n_gpus",
    "batch",
    "latency_ms",
    "power_w",
    "memory_mb",
)
"""Columns of every source, in this order; null where a source does not state the value.

row_id: source and position in the upstream table, stable as long as the table is.
gpu: name in the device catalogue.
timer: K kernels only, E CUDA events, W wall time, C wall time with copy, D with data loader.
precision: as in `dippm.estimate.conditions`, besides "fp64", "fp8" and "int8" that some sources
    have.
mode: "eager" or "compiled". layout: "nchw" or "nhwc" for images. phase: "inference" or "train".
software: versions that decide which kernels run.
model: "timm:resnet50@224", "torchvision:resnet50", "hwgpt:17" ... or null for operators.
operator: class of the operator, null for whole models; its shape stands in further columns.
batch: samples per step and GPU. latency_ms: one step. power_w: board power of one GPU.
memory_mb: device memory in use, context included, MiB.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """One origin of measurements.

    Attributes:
        name: name of the source.
        folder: folder below the data directory.
        origin: the project that published it.
        licence: licence of the published tables.
        timer: how its latency was timed; see `COLUMNS`.
        files: names of the files in its folder.
        reader: function from the folder to rows with `COLUMNS` first.
    """

    name: str
    folder: str
    origin: str
    licence: str
    timer: Timer
    files: tuple[str, ...]
    reader: Callable[[Path], pd.DataFrame]

    def paths(self, data_dir: Path) -> list[Path]:
        """Return the files of this source.

        Raises:
            DataNotFoundError: if one is missing, naming its origin.
        """
        try:
            return [table_path(data_dir, self.folder, file) for file in self.files]
        except DataNotFoundError as error:
            origin = f"{self.name} comes from {self.origin} ({self.licence})."
            raise DataNotFoundError(error.message, f"{error.hint} {origin}") from None

    def read(self, data_dir: Path) -> pd.DataFrame:
        """Return the measured rows.

        Raises:
            DataNotFoundError: if a file is missing.
        """
        folder = self.paths(data_dir)[0].parent
        return self.reader(folder)


def tidy(source: str, table: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table in the common schema: the given columns, then the rest of `table`.

    Columns of `table` that a common column duplicates must be dropped by the caller; a common
    column that is not given becomes null.
    """
    common: dict[str, Any] = {name: columns.get(name) for name in COLUMNS}
    common["source"] = source
    common["row_id"] = [f"{source}/{i}" for i in table.index]
    head = pd.DataFrame(common, index=table.index)
    numbers = ["latency_ms", "power_w", "memory_mb"]
    head[numbers] = head[numbers].astype("float64")
    rest = table.drop(columns=[c for c in table.columns if c in COLUMNS])
    unknown = set(columns) - set(COLUMNS)
    if unknown:
        raise KeyError(f"not in the schema: {sorted(unknown)}")
    return pd.concat([head, rest], axis=1).reset_index(drop=True)


def catalogue_names(names: pd.Series[str], special: Mapping[str, str] | None = None) -> Any:
    """Return the catalogue's name for each device name of a source.

    Args:
        names: names in the source's spelling.
        special: our choice for names that do not state the variant.

    Raises:
        UnknownNameError: if a name is not in the catalogue.
    """
    from dippm.devices import find

    known = {name: find((special or {}).get(name, name)).name for name in names.unique()}
    return names.map(known)
