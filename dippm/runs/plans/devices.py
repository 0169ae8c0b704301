"""Devices of a plan, looked at before anything is begun: nothing is made, nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.errors import CollocationError, UnknownNameError
from dippm.runs.colocation import Sharing
from dippm.runs.colocation.boards import Board, boards
from dippm.runs.colocation.slices import check_mode, mode_is_on, profiles


def look_at(devices: Sequence[str], sharing: Sequence[str]) -> None:
    """Raise what keeps runs from sharing devices, as far as it can be known by looking.

    Args:
        devices: of each of the runs, by index or UUID; none needs none.
        sharing: how each run shares them.

    Raises:
        CollocationError: if there are no such devices, or they cannot be shared so.
        UnknownNameError: if one has no such MIG profile.
    """
    ways = set(ways_of(devices, sharing))
    if not devices:
        return
    with boards(devices) as found:
        for board in found:
            for way in ways:
                _look(board, way)


def ways_of(devices: Sequence[str], sharing: Sequence[str]) -> list[Sharing]:
    """Return how each of some runs shares the same devices.

    Raises:
        CollocationError: if they do not share them in one way, or there is nothing to share.
    """
    ways = [Sharing.parse(text) for text in sharing]
    if len({way.kind for way in ways}) > 1:
        words = ", ".join(sorted({str(way) or "none" for way in ways}))
        hint = "Rows of a workload on the same devices share them in one way."
        raise CollocationError(f"runs together cannot share by {words}", hint)
    if not devices and any(way.kind != "none" for way in ways):
        raise CollocationError("no devices are named that could be shared", "Name one: 0.")
    return ways


def _look(board: Board, way: Sharing) -> None:
    if way.kind == "mig":
        check_mode(board)
        names = [profile.name for profile in profiles(board)]
        if way.profile not in names:
            raise UnknownNameError.of(f"MIG profile of {board.uuid}", way.profile, names)
    elif not board.slice and mode_is_on(board):
        raise CollocationError(
            f"{board.uuid} is in MIG mode, where no run gets all of it",
            "Name a MIG profile in Collocation, or the UUID of a slice in Devices.",
        )
