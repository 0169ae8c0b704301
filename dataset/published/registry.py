"""Registry of the published measured tables: `sources.toml`, parsed and checked.

A source has upstream files, pinned by commit and SHA-256, and tables made from them, pinned by the
SHA-256 of their contents (`tables.digest_of_table`). If a table cannot be made from the published
files, `absent` says why, and it comes from a bundle only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dippm.errors import UnknownNameError

REGISTRY = Path(__file__).with_name("sources.toml")
PACKED_LICENCES = ("Apache-2.0", "MIT")


@dataclass(frozen=True, slots=True)
class UpstreamFile:
    """One published file: path in the repository, size in bytes and SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Table:
    """One of our tables: file in the source's folder, and SHA-256 of its contents."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class PublishedSource:
    """One source of measured tables.

    Attributes:
        name: name of the source and of its folder below the data directory.
        about: description of the measurements.
        use: "trains" or "judges".
        repository: owner/name on GitHub.
        licence: SPDX identifier.
        copyright: copyright line of the licence, or the authors if it has none.
        files: upstream files, in the order of the rows.
        tables: tables made from them.
        commit: commit of the files; empty if each path begins with its own commit.
        absent: reason why the tables cannot be made from the published files; empty if they can.
        unpacked: reason why they may not be in a bundle; empty if they may.
    """

    name: str
    about: str
    use: str
    repository: str
    licence: str
    copyright: str
    files: tuple[UpstreamFile, ...]
    tables: tuple[Table, ...]
    commit: str = ""
    absent: str = ""
    unpacked: str = ""

    @property
    def size(self) -> int:
        """Size of the download in bytes."""
        return sum(file.size for file in self.files)

    @property
    def packed(self) -> bool:
        """Whether a bundle may contain its tables."""
        return not self.unpacked and self.licence in PACKED_LICENCES

    def address(self, file: UpstreamFile) -> str:
        """Return the path of a file below a mirror of GitHub's raw files."""
        return "/".join(part for part in (self.repository, self.commit, file.path) if part)


@cache
def all_published() -> dict[str, PublishedSource]:
    """Return every source by name, in the order of the registry."""
    document = tomllib.loads(REGISTRY.read_text(encoding="utf-8"))
    return {name: _parse_source(name, entry) for name, entry in document.items()}


def select_sources(names: Iterable[str]) -> list[PublishedSource]:
    """Return the named sources, or all of them if none is named.

    Raises:
        UnknownNameError: if there is no such source.
    """
    known = all_published()
    for name in names:
        if name not in known:
            raise UnknownNameError.of("source", name, known)
    return [known[name] for name in dict.fromkeys(names)] or list(known.values())


def _parse_source(name: str, entry: dict[str, Any]) -> PublishedSource:
    files = entry.pop("files", {})
    tables = entry.pop("tables")
    return PublishedSource(
        name=name,
        files=tuple(UpstreamFile(path, size, sha256) for path, (size, sha256) in files.items()),
        tables=tuple(Table(file, sha256) for file, sha256 in tables.items()),
        **entry,
    )
