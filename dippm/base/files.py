"""Files of strangers: which of them are opened, and which links are followed.

Only regular files are opened. A FIFO would block until somebody writes to it, a device may act on
being opened or never end, and what the kernel makes up (as /proc/self/mem) says of itself that it
is empty: no byte of an empty file is asked for.

Links. What the user names is opened wherever it leads: a model hub links each file of a folder into
a store of blobs. A file that the model itself names (ONNX external data, Paddle's parameters) may
be a link too, but must really lie in or below the folder where the model is named, or where the
model really lies (the store). Otherwise a model from a stranger could have us read any file of the
user and see parts of it in an answer.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from dippm.errors import (
    DippmError,
    ModelFileError,
    ModelNotFoundError,
    UnknownFormatError,
    shortened,
)

MOST_ENTRIES = 10_000
"""A model's folder has a few files; a folder with more than this is something else."""

NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def expanded(given: Any) -> Any:
    """Return a path with its "~" replaced by the home folder it stands for; all else as it is.

    A home that nobody knows stays as it is written.
    """
    if not isinstance(given, str | os.PathLike):
        return given
    text = os.fspath(given)
    if not isinstance(text, str) or not text.startswith("~"):
        return given
    return type(given)(os.path.expanduser(text)) if isinstance(given, str | Path) else given


def look(path: Path) -> os.stat_result:
    """Return the status of what a path leads to.

    Raises:
        ModelNotFoundError: if it leads nowhere, or cannot be a name of a file.
        ModelFileError: if it must not be looked at.
    """
    try:
        return os.stat(path)
    except (OSError, ValueError) as error:
        raise refused(path, error) from error


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading, without ever waiting.

    Raises:
        UnknownFormatError: if it is something else.
        ModelFileError: if it cannot be opened.
    """
    _check_regular(path, look(path))  # before it is opened: opening a device may act
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        handle = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise refused(path, error) from error
    file = os.fdopen(handle, "rb")
    try:
        _check_regular(path, os.fstat(handle))  # it may have been exchanged meanwhile
    except ModelFileError:
        file.close()
        raise
    return file


def beginning(path: Path, size: int) -> bytes:
    """Return the first bytes of a regular file, fewer if it is shorter.

    Raises:
        ModelFileError: as `open_regular`, and if it cannot be read.
    """
    with open_regular(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        try:
            return file.read(size) or b""
        except OSError as error:
            raise refused(path, error) from error


class TomlFile(NamedTuple):
    """A small TOML file of a user.

    Attributes:
        table: its content.
        name: of the file, for messages.
        text: as it stands there.
    """

    table: dict[str, Any]
    name: str
    text: str


def read_toml(
    path: str | os.PathLike[str],
    error: type[DippmError],
    *,
    most_bytes: int,
    unreadable: str,
    too_large: str,
    malformed: str,
) -> TomlFile:
    """Read a small TOML file of a user.

    Args:
        path: of the file; "~" stands for the home folder.
        error: what is raised.
        most_bytes: that the file may have.
        unreadable: hint if it cannot be read.
        too_large: hint if it has more bytes.
        malformed: hint if it is not TOML.

    Raises:
        DippmError: `error`, with the hint of what is wrong.
    """
    file = Path(path).expanduser()
    what = shown(file.name, 80)
    try:
        content = beginning(file, most_bytes + 1)
    except ModelFileError as cause:
        raise error(cause.message, unreadable) from cause
    if len(content) > most_bytes:
        in_kib = most_bytes < 1 << 20
        size = f"{most_bytes >> 10} KiB" if in_kib else f"{most_bytes >> 20} MiB"
        raise error(f"{what} is larger than {size}", too_large)
    try:
        text = content.decode("utf-8-sig")
        return TomlFile(tomllib.loads(text), what, text)
    except (ValueError, RecursionError) as cause:
        reason = str(cause) if isinstance(cause, ValueError) else "it is nested too deeply"
        raise error(f"{what} is not TOML: {shortened(reason)}", malformed) from cause


def is_regular(path: Path) -> bool:
    """Return whether a path leads to a regular file; a path that cannot be followed does not."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def entries(folder: Path) -> list[Path]:
    """Return what a folder holds, sorted.

    Raises:
        ModelFileError: if it cannot be read, or holds more than a model's folder does.
    """
    try:
        with os.scandir(folder) as found:
            names = [entry.name for entry in islice(found, MOST_ENTRIES + 1)]
    except OSError as error:
        raise refused(folder, error) from error
    if len(names) > MOST_ENTRIES:
        raise too_many(folder)
    return [folder / name for name in sorted(names)]


def walk(folder: Path) -> Iterator[Path]:
    """Yield the regular files of a folder and the folders in it, in order; links lead to files.

    Raises:
        ModelFileError: if there are more than a model has.
    """
    seen = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        seen += len(folders) + len(names)
        if seen > MOST_ENTRIES:
            raise too_many(folder)
        yield from (path for name in sorted(names) if is_regular(path := Path(parent, name)))


def companion(model: Path, location: str) -> Path:
    """Return the file that a model names as a part of itself; it need not exist.

    Args:
        model: the file that the user named.
        location: relative to its folder.

    Raises:
        ModelFileError: if it leads out of the model's folder, see the rule of this module.
    """
    named = model.parent / location
    allowed = (os.path.realpath(model.parent), os.path.dirname(os.path.realpath(model)))
    try:
        real = os.path.realpath(named)
    except (OSError, ValueError) as error:
        raise refused(named, error) from error
    if not any(os.path.commonpath((real, folder)) == folder for folder in allowed):
        raise ModelFileError(
            f"{model.name} names the file {shown(location)}, which leads out of the folder of the "
            "model",
            "If you trust the model, put the file itself beside it, not a link to it.",
        )
    return named


def refused(path: Path, error: OSError | ValueError) -> ModelFileError:
    """Return the typed error for a path that the system does not let us use."""
    name = shown(path)
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENAMETOOLONG:
        return ModelNotFoundError(f"no such file: {name}", "The name is longer than names can be.")
    if code in NOT_THERE:
        return ModelNotFoundError(f"no such file: {name}", "Check the path.")
    if isinstance(error, ValueError):
        return ModelNotFoundError(
            f"no such file: {name}", "The path holds characters that no name of a file has."
        )
    if code in (errno.EACCES, errno.EPERM):
        return ModelFileError(
            f"{name} must not be read: {error.strerror}",
            "Change its permissions and those of its folders, or copy it to where you may read it.",
        )
    return ModelFileError(
        f"{name} cannot be read: {error.strerror or error}",
        "Check the disk, or copy the file elsewhere.",
    )


def too_many(folder: Path) -> ModelFileError:
    """Return the error for a folder that is none of a model."""
    return ModelFileError(
        f"{shown(folder)} holds more than {MOST_ENTRIES:,} files and folders",
        "Give the folder of the model alone, or the model's own file.",
    )


def kind_of(mode: int) -> str:
    """Return what an entry of a folder is, for messages; empty for a regular file."""
    return next((words for holds, words in _KINDS if holds(mode)), "")


def shown(path: Path | str, most: int = 200) -> str:
    """Return a path for a message, shortened in its middle."""
    text = str(path)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = kind_of(status.st_mode) or "something else"
        raise UnknownFormatError(
            f"{shown(path)} is {what}, not a file",
            "Write the model to a file first, and give that.",
        )
