"""Crash handler: turns an unexpected exception into a report file and one error."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from dippm.base.printable import printable
from dippm.errors import UnexpectedError

DISTRIBUTIONS = (
    "dippm", "torch", "torch-geometric", "apache-tvm", "onnx", "numpy", "safetensors", "typer",
    "rich", "keras", "tensorflow-cpu", "paddlepaddle", "timm", "torchvision", "transformers",
)  # fmt: skip


def report_crash(error: BaseException, words: Sequence[str]) -> UnexpectedError:
    """Write a report about an exception, and return the error for the user.

    Args:
        error: uncaught exception.
        words: arguments of the command line.
    """
    what = f"{type(error).__name__}: {_text(error)}".rstrip(": ").partition("\n")[0]
    message = f"DIPPM failed unexpectedly: {what[:500]}"
    try:
        place = _write(_report(error, words))
    except OSError as failure:
        reason = failure.strerror or str(failure)
        unexpected_error = UnexpectedError(
            message, f"No report could be written ({reason}); set TMPDIR."
        )
    else:
        hint = (
            f"This is a bug in DIPPM. Report it with {place}, which has no content of your files."
        )
        unexpected_error = UnexpectedError(message, hint)
    unexpected_error.__cause__ = error
    return unexpected_error


def _report(error: BaseException, words: Sequence[str]) -> str:
    lines = [
        f"written: {datetime.now(UTC).isoformat(timespec='seconds')}",
        f"command: dippm {shlex.join(words)}",
        f"python: {sys.version.split()[0]} on {platform.platform()}",
        *(f"{name}: {_version(name)}" for name in DISTRIBUTIONS),
        "",
        *_traceback(error),
    ]
    return "\n".join(printable(line, keep="\n") for line in lines) + "\n"


def _traceback(error: BaseException) -> list[str]:
    try:
        return ["".join(traceback.format_exception(error))]
    except Exception as broken:  # an exception that cannot be formatted
        return [*traceback.format_tb(error.__traceback__), f"(not shown: {type(broken).__name__})"]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _write(text: str) -> str:
    handle, path = tempfile.mkstemp(prefix="dippm-report-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return path
