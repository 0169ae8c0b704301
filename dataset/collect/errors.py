"""What ends a campaign before its plan does."""

from __future__ import annotations

from dippm.errors import DippmError


class CollectError(DippmError):
    """The campaign cannot start or cannot go on; what was measured is kept."""

    ended = "error"


class LockedError(CollectError):
    """Another collector works in this folder or on this device."""

    ended = "locked"


class StorageError(CollectError, OSError):
    """A row or shard cannot be written."""

    ended = "storage failed"

    def __str__(self) -> str:
        return DippmError.__str__(self)


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
