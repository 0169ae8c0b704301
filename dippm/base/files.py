"""Untrusted files: which are opened, and which links are followed.

Only regular files are opened. A FIFO would block until it has a writer, a device may act when it
is opened or never end, and virtual files (such as /proc/self/mem) report size 0: an empty file is
never read.

Links. A path that the user names is opened wherever it leads: a model hub links each file of a
folder into a store of blobs. A file that the model itself names (ONNX external data, Paddle's
parameters) may be a link too, but has to resolve to a path in or below the folder where the model
is named, or where the model really is (the store). Otherwise an untrusted model could make DIPPM
read any file of the user and show parts of it in an answer.
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
"""Number of entries above which a folder is not a model's folder."""

NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def expand_home(given: Any) -> Any:
    """Expand "~" at the start of a path; other values are returned unchanged.

    The "~" of an unknown user stays as it is.
    """
    if not isinstance(given, str | os.PathLike):
        return given
    text = os.fspath(given)
    if not isinstance(text, str) or not text.startswith("~"):
        return given
    return type(given)(os.path.expanduser(text)) if isinstance(given, str | Path) else given


def file_status(path: Path) -> os.stat_result:
    """Return the status of the file that a path leads to.

    Raises:
        ModelNotFoundError: if it does not exist, or is not a valid path.
        ModelFileError: if it may not be accessed.
    """
    try:
        return os.stat(path)
    except (OSError, ValueError) as error:
        raise access_error(path, error) from error


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading, without blocking.

    Raises:
        UnknownFormatError: if it is not a regular file.
        ModelFileError: if it cannot be opened.
    """
    _check_regular(path, file_status(path))  # before opening, which has effects on a device
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        handle = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise access_error(path, error) from error
    file = os.fdopen(handle, "rb")
    try:
        _check_regular(path, os.fstat(handle))  # the path may have been replaced meanwhile
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
            raise access_error(path, error) from error


class TomlFile(NamedTuple):
    """Content of a small TOML file of a user.

    Attributes:
        table: parsed content.
        name: name of the file, for messages.
        text: text of the file.
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
        path: path of the file; "~" stands for the home folder.
        error: type of the error to raise.
        most_bytes: largest size of the file.
        unreadable: hint for a file that cannot be read.
        too_large: hint for a file that is too large.
        malformed: hint for a file that is not TOML.

    Raises:
        DippmError: an `error`, with the matching hint.
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
    """Return whether a path leads to a regular file."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted.

    Raises:
        ModelFileError: if it cannot be read, or has more than MOST_ENTRIES.
    """
    try:
        with os.scandir(folder) as found:
            names = [entry.name for entry in islice(found, MOST_ENTRIES + 1)]
    except OSError as error:
        raise access_error(folder, error) from error
    if len(names) > MOST_ENTRIES:
        raise too_many(folder)
    return [folder / name for name in sorted(names)]


def walk(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder, in order; links to files are followed.

    Raises:
        ModelFileError: if there are more than MOST_ENTRIES.
    """
    seen = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        seen += len(folders) + len(names)
        if seen > MOST_ENTRIES:
            raise too_many(folder)
        yield from (path for name in sorted(names) if is_regular(path := Path(parent, name)))


def companion(model: Path, location: str) -> Path:
    """Return the path of a file that a model names as a part of itself; it need not exist.

    Args:
        model: file that the user named.
        location: path relative to its folder.

    Raises:
        ModelFileError: if it leads out of the model's folder, see the top of this module.
    """
    named = model.parent / location
    allowed = (os.path.realpath(model.parent), os.path.dirname(os.path.realpath(model)))
    try:
        real = os.path.realpath(named)
    except (OSError, ValueError) as error:
        raise access_error(named, error) from error
    if not any(os.path.commonpath((real, folder)) == folder for folder in allowed):
        raise ModelFileError(
            f"{model.name} names the file {shown(location)}, which leads out of the folder of the "
            "model",
            "If you trust the model, put the file itself next to it, not a link.",
        )
    return named


def access_error(path: Path, error: OSError | ValueError) -> ModelFileError:
    """Return the error for a path that the system does not allow to use."""
    name = shown(path)
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENAMETOOLONG:
        return ModelNotFoundError(f"no such file: {name}", "The file name is too long.")
    if code in NOT_THERE:
        return ModelNotFoundError(f"no such file: {name}", "Check the path.")
    if isinstance(error, ValueError):
        return ModelNotFoundError(
            f"no such file: {name}", "The path contains characters that file names cannot have."
        )
    if code in (errno.EACCES, errno.EPERM):
        return ModelFileError(
            f"{name} must not be read: {error.strerror}",
            "Change its permissions and those of its folders, or copy it to a readable folder.",
        )
    return ModelFileError(
        f"{name} cannot be read: {error.strerror or error}",
        "Check the disk, or copy the file elsewhere.",
    )


def too_many(folder: Path) -> ModelFileError:
    """Return the error for a folder with too many entries."""
    return ModelFileError(
        f"{shown(folder)} holds more than {MOST_ENTRIES:,} files and folders",
        "Give a folder that contains only the model, or the model file itself.",
    )


def kind_of(mode: int) -> str:
    """Return the kind of a folder's entry, for messages; "" for a regular file."""
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
