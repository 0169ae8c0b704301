"""What ends a campaign before its plan does, and which status the failure of a model is."""

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
    """The campaign cannot start or cannot go on; what was measured is kept."""

    ended = "error"


class LockedError(CollectError):
    """Another collector works in this folder or on this device."""

    ended = "locked"


class DeviceLostError(CollectError):
    """Workers no longer start, or every one of them dies: the device or its driver is gone."""

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
    """Return the status, and whether the process is of no further use.

    A CUDA error other than memory sticks to the context: every later call would fail with it.
    """
    if isinstance(error, ModuleNotFoundError):  # a zoo, or a compiler, that this machine lacks
        return "skipped", False
    text = f"{type(error).__name__}: {error}"
    names = {kind.__name__ for kind in type(error).__mro__}
    if is_out_of_memory(error):
        return "oom", False
    if "AcceleratorError" in names or DEVICE_FAILED.search(text):
        return "crash", True
    return "error", False


def first_line(text: str, most: int = 300) -> str:
    """Return the first line that says something, shortened."""
    lines = (line.strip() for line in text.splitlines())
    line = next(filter(None, lines), "no message")
    return line if len(line) <= most else f"{line[: most - 1]}…"
