"""Get the measured tables that training reads, from the projects that published them.

    python -m dataset.fetch                       every table, into the folder that training reads
    python -m dataset.fetch timm zeus --out DATA  some of them, into another one
    python -m dataset.fetch --from BUNDLE         from a file of `python -m dataset.bundle`
    python -m dataset.fetch --list                sources with licence and size

Files come from pinned commits and are checked against pinned SHA-256; so are the tables that are
made of them. What was cut off is resumed by the same command. `--from` takes a bundle (file or
address that ends in .tar), a folder of tables, or a mirror: a folder or an address that has the
files at OWNER/REPOSITORY/COMMIT/PATH. Exit code 1 if a source that was asked for is not there at
the end.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from dataset.measured.location import named_data_dir
from dataset.published.bundle import open_bundle
from dataset.published.download import Downloader
from dataset.published.fetching import KEPT, Origin, fetch, is_there
from dataset.published.registry import PublishedSource, select_sources
from dippm.base.printable import json_text
from dippm.errors import DippmError

UPSTREAM = "https://raw.githubusercontent.com"
MIB = 1 << 20


def main(arguments: list[str] | None = None) -> int:
    """Fetch the sources that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m dataset.fetch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="all of them if none is named")
    parser.add_argument("--out", type=Path, help="folder of the tables (that which training reads)")
    parser.add_argument("--from", dest="origin", metavar="FOLDER|FILE|URL")
    parser.add_argument("--list", action="store_true", help="say what there is, fetch nothing")
    parser.add_argument("--json", action="store_true", help="print one document")
    asked = parser.parse_args(arguments)
    try:
        sources = select_sources(asked.sources)
        if asked.list:
            _list(sources, as_json=asked.json)
            return 0
        data = named_data_dir(asked.out)
        outcomes = _fetch_all(sources, data, asked.origin)
    except DippmError as error:
        if asked.json:
            print(json_text({"error": error.to_dict()}))
        else:
            print(f"error: {error}", file=sys.stderr)
        return 1
    if asked.json:
        print(json_text({"data": str(data), "sources": outcomes}))
    missing = [outcome for outcome in outcomes if "error" in outcome]
    if not asked.json:
        print(f"{len(outcomes) - len(missing)} of {len(outcomes)} sources in {data}")
    return 1 if missing else 0


def _fetch_all(
    sources: list[PublishedSource], data: Path, named: str | None
) -> list[dict[str, Any]]:
    """Return the outcome of each source, and print it to standard error."""
    columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    outcomes = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        origin = _origin(named, data)
        for source in sources:
            bar = progress.add_task(source.name, total=source.size or None)
            outcome: dict[str, Any] = {"name": source.name, "licence": source.licence}
            try:
                outcome["status"] = "already there"
                if not is_there(source, data):
                    fetch(source, data, origin, partial(progress.advance, bar))
                    outcome["status"] = "fetched"
                progress.console.print(f"{source.name}: {outcome['status']}", highlight=False)
            except (DippmError, OSError) as error:
                known = error if isinstance(error, DippmError) else DippmError(str(error))
                outcome |= {"status": "failed", "error": known.to_dict()}
                progress.console.print(
                    f"{source.name}: {known}", markup=False, highlight=False, soft_wrap=True
                )
            progress.remove_task(bar)
            outcomes.append(outcome)
    if all("error" not in outcome for outcome in outcomes):
        shutil.rmtree(data / KEPT, ignore_errors=True)  # a downloaded bundle
    return outcomes


def _origin(named: str | None, data: Path) -> Origin:
    """Return the origin that `--from` names: a bundle, a folder of tables, or a mirror."""
    if named is None:
        return Origin(files=Downloader(UPSTREAM))
    if "://" in named:
        if not named.endswith(".tar"):
            return Origin(files=Downloader(named))
        address, _, file = named.rpartition("/")
        return Origin(tables=open_bundle(Downloader(address).bring(file, data / KEPT / file)))
    path = Path(named)
    tables = [path / s.name / table.file for s in select_sources([]) for table in s.tables]
    if path.is_dir() and not any(table.is_file() for table in tables):
        return Origin(files=Downloader(path))
    return Origin(tables=open_bundle(path))


def _list(sources: list[PublishedSource], *, as_json: bool) -> None:
    if as_json:
        print(json_text({"sources": [_describe(source) for source in sources]}))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("source", "use", "licence", "MiB"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what")
    for source in sources:
        size = "bundle" if source.absent else f"{source.size / MIB:.1f}"
        table.add_row(source.name, source.use, source.licence, size, source.about)
    console = Console(highlight=False)
    console.print(table)
    for source in sources:
        if source.absent:
            console.print(
                f"{source.name} comes from a bundle only: {source.absent}.", soft_wrap=True
            )


def _describe(source: PublishedSource) -> dict[str, Any]:
    described: dict[str, Any] = {
        name: getattr(source, name)
        for name in ("name", "about", "use", "repository", "commit", "licence", "copyright", "size")
    }
    described["files"] = {source.address(file): file.sha256 for file in source.files}
    described["tables"] = [table.file for table in source.tables]
    return described | {"absent": source.absent or None, "unpacked": source.unpacked or None}


if __name__ == "__main__":
    sys.exit(main())
