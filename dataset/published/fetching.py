"""Fetching a source into the data directory: files from a mirror, or tables from a bundle."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dataset.published import operators, power, reports, whole_models
from dataset.published.bundle import ReadTable
from dataset.published.download import Downloader
from dataset.published.registry import PublishedSource
from dataset.published.tables import digest_of_table, write_table
from dataset.published.whole_models import Files, Tables
from dippm.errors import DippmError

CONVERTERS: dict[str, Callable[[Files], Tables]] = {
    "timm": whole_models.timm,
    "pytorch_gpu_benchmark": whole_models.pytorch_gpu_benchmark,
    "migperf": whole_models.migperf,
    "parvagpu": whole_models.parvagpu,
    "neusight_ops": operators.neusight_ops,
    "aiconfigurator": operators.aiconfigurator,
    "flagperf": operators.flagperf,
    "optimum_benchmark": reports.optimum_benchmark,
    "raphischer": power.raphischer,
    "splitwise": power.splitwise,
    "zeus": power.zeus,
}
KEPT = ".upstream"
"""Folder below the data directory for downloaded files of unfinished sources."""


class FetchError(DippmError):
    """A source's tables could not be made."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of tables: published files, or packed tables."""

    files: Downloader | None = None
    tables: ReadTable | None = None


def is_there(source: PublishedSource, data: Path) -> bool:
    """Return whether the pinned tables of a source are in the data directory.

    Raises:
        FetchError: if a file with other contents has the path of a table, which is not overwritten.
    """
    paths = {table: data / source.name / table.file for table in source.tables}
    for table, path in paths.items():
        if path.is_file() and digest_of_table(path) != table.sha256:
            raise FetchError(
                f"{path} is not the pinned table: nothing was overwritten",
                "Move it away, or name another folder with --out.",
            )
    return all(path.is_file() for path in paths.values())


def fetch(
    source: PublishedSource,
    data: Path,
    origin: Origin,
    report_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the tables of a source into the data directory: all of them or none.

    Args:
        source: the source to fetch.
        data: directory of all tables.
        origin: origin of its files or tables.
        report_bytes: called with the size of every downloaded piece, in bytes.

    Raises:
        FetchError: if they cannot be made, or differ from the pinned ones.
        DownloadError: if a file is not available.
    """
    folder = data / KEPT / source.name
    made = folder / "tables"
    shutil.rmtree(made, ignore_errors=True)
    if origin.tables is not None:
        _unpack(source, origin.tables, made)
    elif origin.files is not None:
        _convert(source, origin.files, folder / "files", made, report_bytes)
    for table in source.tables:
        if digest_of_table(made / table.file) != table.sha256:
            raise FetchError(
                f"{source.name}/{table.file} comes out otherwise than pinned",
                f"It was left in {made}. Report it with the versions of pandas and pyarrow.",
            )
    (data / source.name).mkdir(exist_ok=True)
    for table in source.tables:
        (made / table.file).replace(data / source.name / table.file)
    shutil.rmtree(folder)
    if not any((data / KEPT).iterdir()):
        (data / KEPT).rmdir()


def _unpack(source: PublishedSource, read: ReadTable, made: Path) -> None:
    try:
        contents = {table.file: read(f"{source.name}/{table.file}") for table in source.tables}
    except KeyError as error:
        raise FetchError(
            f"the bundle has not all tables of {source.name}",
            source.unpacked or "Name another bundle, or fetch it from upstream without --from.",
        ) from error
    made.mkdir(parents=True)
    for file, content in contents.items():
        (made / file).write_bytes(content)


def _convert(
    source: PublishedSource,
    mirror: Downloader,
    kept: Path,
    made: Path,
    report_bytes: Callable[[int], None],
) -> None:
    if source.absent:
        raise FetchError(
            f"what {source.repository} publishes does not give our tables: {source.absent}",
            f"`python -m dataset.fetch {source.name} --from BUNDLE` takes it from a bundle.",
        )
    files = {
        file.path: mirror.bring(source.address(file), kept / file.path, file.sha256, report_bytes)
        for file in source.files
    }
    for name, table in CONVERTERS[source.name](files).items():
        write_table(table, made / name)
