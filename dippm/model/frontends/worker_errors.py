"""Errors of a conversion, and their transfer from the worker to its caller."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EIO, ELOOP, EMFILE, ENAMETOOLONG, ENFILE, ENOSPC, EPERM
from pathlib import Path
from typing import Any

from dippm import errors
from dippm.base import files
from dippm.base.process import is_out_of_memory
from dippm.errors import ConversionError, DippmError, ModelFileError


def find_memory_error(error: BaseException) -> BaseException | None:
    """Return the error that says that memory ran out: this one or a cause of it, else None."""
    link: BaseException | None = error
    for _ in range(20):
        if link is None or is_out_of_memory(link):
            return link
        link = link.__cause__ or link.__context__
    return None


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def no_room_error(error: OSError, folder: str) -> ConversionError:
    """Return the error for a temporary folder that cannot be created or written.

    Args:
        error: the system's error.
        folder: the temporary folder; "" if none can be created.
    """
    what = f"the temporary folder {folder} cannot be written" if folder else ""
    return ConversionError(
        f"{what or 'no temporary folder can be made'}: {error.strerror or error}",
        "Make room in it, raise a limit on the size of files (`ulimit -f`; memory_limit_mb=... is"
        " one), or set TMPDIR to another folder.",
    )


def no_process_error(error: OSError | RuntimeError) -> ConversionError:
    """Return the error for a process or thread that cannot be started."""
    reason = getattr(error, "strerror", None) or error
    return ConversionError(
        f"no process or thread can be started for the conversion: {reason}",
        "End other programs, or raise the limits on processes, files and memory (`ulimit -a`).",
    )


def out_of_time_error(limit_s: float, where: str) -> ConversionError:
    """Return the error for a conversion that reached its time limit.

    Args:
        limit_s: the time limit.
        where: its stage, and the part of the model if known.
    """
    return ConversionError(
        f"the conversion took longer than {limit_s:g} s (step: {where})",
        "Give it more time with timeout_s=..., write loops over single steps as one operator, or"
        " export the model to ONNX first.",
    )


def find_sandbox_refusal(error: BaseException) -> PermissionError | None:
    """Return the error of an access blocked by the sandbox (`process.enter_sandbox`), else None.

    Such an error on a readable file means that the code tried to write or execute it.
    """
    link: BaseException | None = error.__cause__ if isinstance(error, DippmError) else error
    for _ in range(20):
        if isinstance(link, PermissionError) and (
            link.filename is None
            or os.access(link.filename, os.R_OK)
            or not _exists(str(link.filename))
        ):
            return link
        link = link and (link.__cause__ or link.__context__)
    return None


def _exists(name: str) -> bool:
    """Return whether a file exists, as far as this process can see."""
    try:
        os.lstat(name)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def to_document(error: BaseException) -> dict[str, str]:
    """Return an error as a JSON document for the caller."""
    cause = error.__cause__ or error.__context__
    if short := find_memory_error(error):
        limit = os.environ.get("DIPPM_WORKER_LIMIT", "its limit")
        message, hint = memory_words(limit, f"({_words(short)})")
        return {"type": "ConversionError", "message": message, "hint": hint, "cause": ""}
    if refusal := find_sandbox_refusal(error):
        return {
            "type": "ConversionError",
            "message": "code of the model or of a plug-in tried what conversions do not allow: "
            + _words(refusal),
            "hint": "Conversions have no network, start no programs, and write files only into "
            "the folder TMPDIR: prepare what the code needs beforehand, or export the model to "
            "ONNX.",
            "cause": _words(error),
        }
    if isinstance(error, DippmError):
        return {**error.to_dict(), "cause": _words(cause) if cause else ""}
    if isinstance(error, PermissionError) and error.filename:
        return {**files.access_error(Path(error.filename), error).to_dict(), "cause": _words(error)}
    if isinstance(error, ImportError):
        missing = getattr(error, "name", None) or str(error)
        return {
            "type": "FrameworkNotInstalledError",
            "message": f"a library that reads this file does not load: {missing}",
            "hint": 'Install what is missing, for instance with pip install "dippm[all]".',
            "cause": _words(error),
        }
    if isinstance(error, RecursionError):
        return {
            "type": "ConversionError",
            "message": "the model nests too deeply for its converter: calls exceed Python's "
            "recursion limit",
            "hint": "Flatten nested modules, or export the model to ONNX.",
            "cause": _words(error),
        }
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return {
            **no_room_error(error, os.environ.get("TMPDIR", "")).to_dict(),
            "cause": _words(error),
        }
    return {
        "type": "ConversionError",
        "message": f"the converter failed: {_words(error)}",
        "hint": "Export the model to ONNX and try that file; if it fails too, report it.",
        "cause": _words(cause) if cause else _words(error),
    }


def memory_words(limit: str, where: str) -> tuple[str, str]:
    """Return message and hint for a conversion that exceeded its memory limit."""
    return (
        f"the conversion needed more memory than {limit} {where}",
        "Raise the limit with memory_limit_mb=..., or export the model to ONNX first.",
    )


def _words(error: BaseException, characters: int = 1500) -> str:
    return f"{type(error).__name__}: {error}"[:characters]


def from_document(document: dict[str, str]) -> DippmError:
    """Return the error from a worker's document."""
    kind = getattr(errors, document["type"], ConversionError)
    if not (isinstance(kind, type) and issubclass(kind, DippmError)):
        kind = ConversionError
    error: DippmError = kind(document["message"], document["hint"])
    if document["cause"]:
        error.__cause__ = RuntimeError(document["cause"])
    return error


# Errors of the file system while a model is inspected.


HINTS = {
    EACCES: "Ask its owner for permission to read it: `ls -l` shows the owner.",
    EPERM: "Ask its owner for permission to read it: `ls -l` shows the owner.",
    ENAMETOOLONG: "Check the path; no name may have more than 255 bytes.",
    ELOOP: "It is a symbolic link to itself: give the file.",
    EIO: "The disk or network share that holds it fails: copy the file elsewhere.",
    ENOSPC: "Make room in the temporary folder, or set TMPDIR to another.",
    EMFILE: "Too many files are open: close some, or raise `ulimit -n`.",
    ENFILE: "Too many files are open on this machine: close some.",
}


@contextmanager
def convert_file_errors(source: Any) -> Iterator[None]:
    """Convert an error of the file system into one of ours.

    Raises:
        ModelFileError: with the system's message and a hint.
    """
    try:
        yield
    except DippmError:
        raise
    except OSError as error:
        what = str(source) if error.filename is None else str(error.filename)
        reason = error.strerror or str(error)
        hint = HINTS.get(error.errno or 0, "Check that the file exists and can be read.")
        raise ModelFileError(f"{what} cannot be read: {reason}", hint) from error
    except RuntimeError as error:
        if "Symlink loop" not in str(error) and "home directory" not in str(error):
            raise
        raise ModelFileError(f"{source} cannot be read: {error}", HINTS[ELOOP]) from error
