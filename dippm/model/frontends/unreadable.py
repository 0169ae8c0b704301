"""What the file system refuses while a model is looked at, as an error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EIO, ELOOP, EMFILE, ENAMETOOLONG, ENFILE, ENOSPC, EPERM
from typing import Any

from dippm.errors import DippmError, ModelFileError

HINTS = {
    EACCES: "Ask for the right to read it: `ls -l` shows whose it is.",
    EPERM: "Ask for the right to read it: `ls -l` shows whose it is.",
    ENAMETOOLONG: "Check the path; no name may have more than 255 bytes.",
    ELOOP: "It is a symbolic link to itself: give the file.",
    EIO: "The disk or network share that holds it fails: copy the file elsewhere.",
    ENOSPC: "Make room in the temporary folder, or set TMPDIR to another.",
    EMFILE: "Too many files are open: close some, or raise `ulimit -n`.",
    ENFILE: "Too many files are open on this machine: close some.",
}


@contextmanager
def refusals_told(source: Any) -> Iterator[None]:
    """Turn an error of the file system into one of ours.

    Raises:
        ModelFileError: that says what the system said, and what to do.
    """
    try:
        yield
    except DippmError:
        raise
    except OSError as error:
        what = str(source) if error.filename is None else str(error.filename)
        reason = error.strerror or str(error)
        hint = HINTS.get(error.errno or 0, "Check that the file is there and can be read.")
        raise ModelFileError(f"{what} cannot be read: {reason}", hint) from error
    except RuntimeError as error:
        if "Symlink loop" not in str(error) and "home directory" not in str(error):
            raise
        raise ModelFileError(f"{source} cannot be read: {error}", HINTS[ELOOP]) from error
