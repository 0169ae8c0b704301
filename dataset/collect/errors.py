"""Errors that end a campaign early, and the status of a model's failure."""

from __future__ import annotations

import re

from dippm.base.process import is_out_of_memory
from dippm.errors import DippmError
from dippm.measure.columns import Status

DEVICE_FAILED = re.compile(
    r"CUDA error|CUDA driver error|CU(DNN|BLAS)_STATUS_(EXECUTION|INTERNAL)"
    r"|no CUDA-capable device|device lost|GPU is lost|fallen off the bus",
    re.IGNORECASE,
)


class CollectError(DippmError):
    """The campaign cannot start or continue; measured rows are kept."""

    ended = "error"


class LockedError(CollectError):
    """Another collector uses this folder or this device."""

    ended = "locked"


class DeviceLostError(CollectError):
    """Workers no longer start, or all of them die: the device or its driver is gone."""

    ended = "device lost"


class Stop(Exception):  # noqa: N818 - no error: a budget was spent or someone asked to stop
    """No further point may start.

    Attributes:
        why: "budget", "limit", or the name of a signal.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def classify(error: BaseException) -> tuple[Status, bool]:
    """Return the status of an error, and whether the process has become unusable.

    A CUDA error other than memory stays in the context: every later call would raise it.
    """
    if isinstance(error, ModuleNotFoundError):  # a model zoo or compiler that is not installed
        return "skipped", False
    text = f"{type(error).__name__}: {error}"
    names = {kind.__name__ for kind in type(error).__mro__}
    if is_out_of_memory(error):
        return "oom", False
    if "AcceleratorError" in names or DEVICE_FAILED.search(text):
        return "crash", True
    return "error", False


def first_line(text: str, most: int = 300) -> str:
    """Return the first non-empty line, shortened."""
    lines = (line.strip() for line in text.splitlines())
    line = next(filter(None, lines), "no message")
    return line if len(line) <= most else f"{line[: most - 1]}…"
