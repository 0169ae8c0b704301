"""`seated`: seats for runs that share devices, and an end that leaves the devices as they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dippm.colocation.seat import Seat
from dippm.colocation.sharing import Sharing
from dippm.errors import CollocationError

NO_DEVICE = ("", "-")


@contextmanager
def seated(
    devices: Sequence[str] = ("0",),
    sharing: str | Sequence[str] = "",
    count: int = 1,
    *,
    journal: Path,
) -> Iterator[tuple[Seat, ...]]:
    """Give seats to runs that share devices; at the end all that was made for them is undone.

    Args:
        devices: index of NVML, or UUID, of each GPU that every run uses; ("",) or ("-",) for no
            GPU, where a seat changes nothing.
        sharing: as `Sharing.parse` takes it; a sequence gives each run its own MIG profile.
        count: how many runs share the devices.
        journal: a folder, made where it is missing: each side effect is written there before it
            happens, so that `undo` finds what a crash left.

    Yields:
        A seat for each run.

    Raises:
        CollocationError: if the devices cannot be shared so; nothing is left behind.
        UnknownNameError: if a GPU has no MIG profile of that name.
    """
    asked = [sharing] * count if isinstance(sharing, str) else list(sharing)
    ways = [Sharing.parse(text) for text in asked]
    if all(device.strip() in NO_DEVICE for device in devices):
        yield tuple(Seat({}, (), "", "", {}) for _ in ways)
        return
    raise CollocationError("no devices can be shared yet", "Leave out the devices.")


def undo(journal: Path) -> list[str]:
    """Undo what a crash left of `seated`: servers of ours are ended, slices of ours destroyed.

    What belongs to a process that still runs is left. Nothing that others made is touched.

    Args:
        journal: the folder that `seated` was given; it may be missing.

    Returns:
        A sentence for each thing that was done, or could not be; none if nothing was left.
    """
    return []
