"""Where each measured table is published: `sources.toml`, read and checked.

A source has files upstream, pinned by commit and SHA-256, and tables that are made of them, pinned
by the SHA-256 of what they say (`tables.digest_of_table`). Where a table cannot be made from what
is published, `absent` says why; it then comes from a bundle alone.
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
    """One published file: its path in the repository, bytes and SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table of ours: its file in the source's folder, and the SHA-256 of its contents."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Published:
    """One source of measured tables.

    Attributes:
        name: of the source and of its folder below the data directory.
        about: what was measured.
        use: "trains" or "judges".
        repository: owner/name on GitHub.
        licence: SPDX identifier.
        copyright: line of the licence, or who wrote it where the licence has none.
        files: in the order that rows take.
        tables: that are made of them.
        commit: of the files; empty if each path begins with a commit of its own.
        absent: why the tables cannot be made from the published files; empty if they can.
        unpacked: why they may not be given on in a bundle; empty if they may.
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
        """Bytes to download."""
        return sum(file.size for file in self.files)

    @property
    def packed(self) -> bool:
        """Whether a bundle may hold its tables."""
        return not self.unpacked and self.licence in PACKED_LICENCES

    def address(self, file: UpstreamFile) -> str:
        """Return the path of a file below a mirror of GitHub's raw files."""
        return "/".join(part for part in (self.repository, self.commit, file.path) if part)


@cache
def all_published() -> dict[str, Published]:
    """Return every source by name, in the order of the registry."""
    document = tomllib.loads(REGISTRY.read_text(encoding="utf-8"))
    return {name: _published(name, entry) for name, entry in document.items()}


def chosen(names: Iterable[str]) -> list[Published]:
    """Return the named sources, or all of them if none is named.

    Raises:
        UnknownNameError: if there is no such source.
    """
    known = all_published()
    for name in names:
        if name not in known:
            raise UnknownNameError.of("source", name, known)
    return [known[name] for name in dict.fromkeys(names)] or list(known.values())


def _published(name: str, entry: dict[str, Any]) -> Published:
    files = entry.pop("files", {})
    tables = entry.pop("tables")
    return Published(
        name=name,
        files=tuple(UpstreamFile(path, size, sha256) for path, (size, sha256) in files.items()),
        tables=tuple(Table(file, sha256) for file, sha256 in tables.items()),
        **entry,
    )
