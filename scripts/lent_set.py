"""A collected set as few small files of which some are whole at every moment, whatever is killed.

A packing is the whole set, cut into parts: "collected-003.1of2.tar.gz" is the first of two parts
of the third packing. A part is written under another name and renamed, and the packing before goes
when the last part is there. Rows that were measured since lie in "since.jsonl". So a kill costs
what came after the last look, and there are never more than `MOST_FILES` files.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from dippm.measure.collected.journal import NAME as JOURNAL
from dippm.measure.collected.journal import encode, read_journal, sync_folder, write_whole

MOST_FILES = 8
"""Two packings, while one takes the other's place, and the rows since."""
PART_BYTES = 15 << 20
SINCE = "since.jsonl"
SINCE_BYTES = 8 << 20
"""Beyond it a packing takes the rows in, so that the file stays as small as a part."""
FULL_BYTES = 30 << 20
"""A set beyond it is full: its next packing could need a part more than `MOST_FILES` allows."""
PART = re.compile(r"collected-(\d+)\.(\d+)of(\d+)\.tar\.gz")
LOCK, LOG = "collector.lock", "worker.log"
DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError)


class Keeper:
    """Keeps in one folder what a collector writes to another.

    Args:
        folder: that the collector writes to.
        out: that comes back; is made if it is missing.

    Attributes:
        is_full: whether no more rows should be added.
    """

    def __init__(self, folder: Path, out: Path) -> None:
        self._folder, self._out = folder, out
        self._files: dict[str, int] = {}
        self._copied = 0
        self.is_full = False
        out.mkdir(parents=True, exist_ok=True)

    def look(self) -> None:
        """Take over what was written since the last look."""
        with suppress(FileNotFoundError):  # a shard was merged meanwhile: the next look
            self._take()

    def pack(self) -> None:
        """Put the whole set in place of the packing before.

        Raises:
            FileNotFoundError: if the collector removed a file meanwhile.
        """
        files = _files(self._folder)
        content, copied = _archive(self._folder)
        parts = [content[i : i + PART_BYTES] for i in range(0, len(content), PART_BYTES)]
        before = {path: int(found[1]) for path, found in _parts(self._out)}
        number = max(before.values(), default=0) + 1
        for position, part in enumerate(parts, 1):
            name = f"collected-{number:03d}.{position}of{len(parts)}.tar.gz"
            write_whole(self._out / name, part)
        for path in (*before, self._out / SINCE):
            path.unlink(missing_ok=True)
        sync_folder(self._out)
        self._files, self._copied = files, copied
        self.is_full = len(content) > FULL_BYTES

    def _take(self) -> None:
        journal, since = self._folder / JOURNAL, self._out / SINCE
        new_bytes = _size(journal) - self._copied
        if self._changed() or new_bytes < 0 or _size(since) + new_bytes > SINCE_BYTES:
            self.pack()
        elif new_bytes:
            with journal.open("rb") as file:
                file.seek(self._copied)
                lines = _whole_lines(file.read(new_bytes))
            with since.open("ab") as file:
                file.write(lines)
            self._copied += len(lines)

    def _changed(self) -> bool:
        """Whether a file beside the journal and the log is new or another."""
        changed = _files(self._folder).items() ^ self._files.items()
        return any(not name.endswith(LOG) for name, _ in changed)


def holds_packing(folder: Path) -> bool:
    """Return whether a folder has a part of a packing."""
    return folder.is_dir() and any(_parts(folder))


def unpack(carried: Path, folder: Path, *, say: Callable[[str], None]) -> None:
    """Lay out the set that a folder holds: the newest packing that is whole, and the rows since.

    A folder that is a set itself is copied. Files may be read-only, what is laid out is not.

    Args:
        carried: what a command left; nothing if it is missing.
        folder: for the set; is made.
        say: told what could not be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not carried.is_dir():
        return
    if not _unpack_newest(carried, folder, say):
        _copy(carried, folder)
    since, torn = read_journal(carried / SINCE)
    if torn:
        say(f"{len(torn)} lines of {SINCE} are torn and were left out")
    if since:
        journal = folder / JOURNAL
        known = {row["row_id"] for row in read_journal(journal)[0]}
        with journal.open("ab") as file:
            file.writelines(encode(row) for row in since if row["row_id"] not in known)


def _unpack_newest(carried: Path, folder: Path, say: Callable[[str], None]) -> bool:
    packings: defaultdict[tuple[int, int], dict[int, Path]] = defaultdict(dict)
    for path, match in _parts(carried):
        packings[int(match[1]), int(match[3])][int(match[2])] = path
    for (number, count), parts in sorted(packings.items(), reverse=True):
        if sorted(parts) != list(range(1, count + 1)):
            say(f"packing {number} is not whole: {len(parts)} of {count} parts are there")
            continue
        try:
            content = gzip.decompress(b"".join(parts[i].read_bytes() for i in sorted(parts)))
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(folder, filter="data")
        except DAMAGED as error:
            say(f"packing {number} is damaged ({type(error).__name__}: {error})")
        else:
            return True
    return False


def _copy(carried: Path, folder: Path) -> None:
    """Copy a set as the collector left it; modes stay behind."""
    for path in sorted(carried.rglob("*")):
        own = PART.fullmatch(path.name) or path.name in (SINCE, LOCK)
        if path.is_file() and not own:
            target = folder / path.relative_to(carried)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _archive(folder: Path) -> tuple[bytes, int]:
    """Return a set as an archive, and how many bytes of its journal are in it."""
    journal = folder / JOURNAL
    rows = _whole_lines(journal.read_bytes()) if journal.exists() else b""
    files = {name: (folder / name).read_bytes() for name in _files(folder)}  # rows may move there
    packed = io.BytesIO()
    # Shards are compressed already; the least level does for the journal.
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name, content in {JOURNAL: rows, **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue(), len(rows)


def _files(folder: Path) -> dict[str, int]:
    """Return the files of a set beside its journal by name, with their sizes."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {
        name: path.stat().st_size
        for name, path in found.items()
        if path.is_file() and name not in (JOURNAL, LOCK) and path.suffix != ".part"
    }


def _parts(folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in sorted(folder.iterdir()):
        if match := PART.fullmatch(path.name):
            yield path, match


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def campaigns_end(folder: Path) -> str:
    """Return how the last campaign of a set ended and what it left, in words."""
    files = sorted((folder / "campaigns").glob("*.json"))
    if not files:
        return "nothing was measured"
    last = json.loads(files[-1].read_text(encoding="utf-8"))
    return f"{last['ended']}: {last['rows']} rows in this call, {last['left']} points left"
