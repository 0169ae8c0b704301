"""Readers, one file per origin. To add one: a module with `SOURCES`, and its name in the list."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pandas as pd

from dataset.measured.location import DataNotFoundError, data_dir
from dataset.measured.table import Source
from dippm.errors import UnknownNameError

MODULES = (
    "timm",
    "pytorch_gpu_benchmark",
    "hwgpt",
    "neusight_ops",
    "aiconfigurator",
    "vidur",
    "kernelbench",
    "flagperf",
    "migperf",
    "miso",
    "optimum_benchmark",
    "raphischer",
    "zeus",
    "parvagpu",
    "deepbench",
    "sd_webui",
    "ecnas",
    "hf_training_steps",
)


def all_sources() -> dict[str, Source]:
    """Return every source by name."""
    modules = [import_module(f"dataset.measured.sources.{name}") for name in MODULES]
    return {source.name: source for module in modules for source in module.SOURCES}


def read(name: str, folder: Path | str | None = None) -> pd.DataFrame:
    """Return the measured rows of one source.

    Args:
        name: name of the source.
        folder: folder of all tables; see `dataset.measured.location.data_dir`.

    Raises:
        UnknownNameError: if there is no such source.
        DataNotFoundError: if its tables are not on this machine.
    """
    return source_of(name).read(data_dir(folder))


def read_if_there(name: str, folder: Path | str | None = None) -> pd.DataFrame | None:
    """Return the measured rows of one source, None if its tables are not on this machine.

    Args:
        name: name of the source.
        folder: folder of all tables; see `dataset.measured.location.data_dir`.

    Raises:
        UnknownNameError: if there is no such source.
        DataNotFoundError: if there is no such folder.
    """
    return read(name, folder) if is_there(name, folder) else None


def is_there(name: str, folder: Path | str | None = None) -> bool:
    """Return whether all tables of a source are on this machine.

    Args:
        name: name of the source.
        folder: folder of all tables; see `dataset.measured.location.data_dir`.

    Raises:
        UnknownNameError: if there is no such source.
        DataNotFoundError: if there is no such folder.
    """
    source, found = source_of(name), data_dir(folder)
    try:
        source.paths(found)
    except DataNotFoundError:
        return False
    return True


def source_of(name: str) -> Source:
    """Return a source by name.

    Raises:
        UnknownNameError: if the name is unknown.
    """
    sources = all_sources()
    if name not in sources:
        raise UnknownNameError.of("source", name, sources)
    return sources[name]
