"""A collected set as a few small files that are complete at any moment, even after a kill.

A packing is the whole set, split into parts: "collected-003.1of2.tar.gz" is the first of two parts
of the third packing. A part is written under another name and renamed, and the previous packing is
removed after the last part. Rows measured since then are in "since.jsonl". So a kill loses only
rows after the last look, and there are never more than `MOST_FILES` files.
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
"""Maximum number of files: two packings, during a replacement, and the rows since."""
PART_BYTES = 15 << 20
SINCE = "since.jsonl"
SINCE_BYTES = 8 << 20
"""Size of the rows since, at which a new packing includes them."""
FULL_BYTES = 30 << 20
"""Size of a full set, whose next packing could exceed `MOST_FILES`."""
PART = re.compile(r"collected-(\d+)\.(\d+)of(\d+)\.tar\.gz")
LOCK, LOG = "collector.lock", "worker.log"
DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError)


class SetArchiver:
    """Archives the output folder of a collector to another folder.

    Args:
        folder: folder that the collector writes to.
        out: folder of the archive; created if missing.

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
        """Archive the rows written since the last look."""
        with suppress(FileNotFoundError):  # a shard was merged meanwhile: wait for the next look
            self._take()

    def pack(self) -> None:
        """Replace the packing by one of the whole set.

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
        if self._has_changed() or new_bytes < 0 or _size(since) + new_bytes > SINCE_BYTES:
            self.pack()
        elif new_bytes:
            with journal.open("rb") as file:
                file.seek(self._copied)
                lines = _whole_lines(file.read(new_bytes))
            with since.open("ab") as file:
                file.write(lines)
            self._copied += len(lines)

    def _has_changed(self) -> bool:
        """Whether a file other than the journal and the log is new or has changed."""
        changed = _files(self._folder).items() ^ self._files.items()
        return any(not name.endswith(LOG) for name, _ in changed)


def holds_packing(folder: Path) -> bool:
    """Return whether a folder has a part of a packing."""
    return folder.is_dir() and any(_parts(folder))


def unpack(carried: Path, folder: Path, *, say: Callable[[str], None]) -> None:
    """Unpack the set in a folder: the newest complete packing, and the rows since.

    A folder that is a set itself is copied. Files may be read-only; unpacked ones are not.

    Args:
        carried: output folder of an earlier command; may be missing.
        folder: folder of the set; created if missing.
        say: called with a message about unreadable files.
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
    """Copy a set of the collector, without file modes."""
    for path in sorted(carried.rglob("*")):
        own = PART.fullmatch(path.name) or path.name in (SINCE, LOCK)
        if path.is_file() and not own:
            target = folder / path.relative_to(carried)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _archive(folder: Path) -> tuple[bytes, int]:
    """Return a set as an archive, and the number of bytes of its journal in it."""
    journal = folder / JOURNAL
    rows = _whole_lines(journal.read_bytes()) if journal.exists() else b""
    files = {name: (folder / name).read_bytes() for name in _files(folder)}  # rows may move there
    packed = io.BytesIO()
    # Shards are compressed already; the lowest level suffices for the journal.
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name, content in {JOURNAL: rows, **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue(), len(rows)


def _files(folder: Path) -> dict[str, int]:
    """Return sizes of the files of a set, except its journal, by name."""
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
    """Return a sentence on the end of a set's last campaign and its remaining points."""
    files = sorted((folder / "campaigns").glob("*.json"))
    if not files:
        return "nothing was measured"
    last = json.loads(files[-1].read_text(encoding="utf-8"))
    return f"{last['ended']}: {last['rows']} rows in this call, {last['left']} points left"
