"""`AssumedBoards`: GPUs of another machine that a plan is meant for, from the catalogue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dippm.devices import Device, arrange, find, places
from dippm.errors import CollocationError, PlanError, UnknownNameError, shortened
from dippm.runs.colocation import Sharing
from dippm.runs.colocation.boards import Board, boards
from dippm.runs.colocation.slices import check_mode, mode_is_on, profiles

MOST_BOARDS = 64


class AssumedBoards(NamedTuple):
    """GPUs of one kind in an assumed machine.

    Attributes:
        device: GPU of the catalogue.
        boards: number of GPUs; their indices are 0 to `boards` - 1.
    """

    device: Device
    boards: int

    @classmethod
    def parse(cls, text: str) -> AssumedBoards:
        """Parse "a100x4", or "a100" for one GPU.

        Raises:
            PlanError: if the number is invalid, or the device is not a GPU.
            UnknownNameError: if the device does not exist.
        """
        name, number = text.strip(), 1
        if (found := re.fullmatch(r"(.*\S)\s*[x×*]\s*([0-9]{1,6})", name)) is not None:
            name, number = found[1], int(found[2])
        if not 0 < number <= MOST_BOARDS:
            hint = f"Give 1 to {MOST_BOARDS} of them: a100x4."
            raise PlanError(f"{shortened(text)} is not a set of GPUs of one machine", hint)
        device = find(name)
        if device.kind != "gpu":
            raise PlanError(f"{device.name} is no GPU", "Name one: `dippm devices` lists them.")
        return cls(device, number)

    def check_sharing(self, devices: Sequence[str], sharing: Sequence[str]) -> None:
        """Raise if runs cannot share these GPUs, as the function of the same name does.

        MIG mode, other users and driver of the real GPUs are not known here.

        Raises:
            CollocationError: if there are no such devices, or they cannot be shared this way: the
                slices of a workload have to fit together.
            UnknownNameError: if they have no such MIG profile.
        """
        ways = parse_sharing(devices, sharing)
        for index in devices:
            # A UUID may belong to any GPU; an index must exist.
            if index.isdecimal() and int(index) >= self.boards:
                has = f"{self.boards} × {self.device.name}, 0 to {self.boards - 1}"
                raise CollocationError(f"there is no GPU {index}", f"Assumed are {has}.")
        profiles = [profile.name for profile in self.device.mig_profiles]
        profiles += self.device.unlisted_mig_profiles
        wanted = [way.profile for way in ways if way.kind == "mig"]
        if wanted and not profiles:
            hint = "Name another way to share, or another GPU."
            raise CollocationError(f"{self.device.name} has no MIG slices", hint)
        for name in wanted:
            if name not in profiles:
                raise UnknownNameError.of(f"MIG profile of {self.device.name}", name, profiles)
        possible = places(self.device)
        if {place.profile for place in possible}.issuperset(wanted) and (
            arrange(wanted, possible) is None
        ):
            hint = f"`dippm mig plan` finds slices of {self.device.name} that fit together."
            raise CollocationError(f"{' and '.join(wanted)} do not fit together", hint)


# Check of a plan's devices before anything starts; it changes nothing.


def check_sharing(devices: Sequence[str], sharing: Sequence[str]) -> None:
    """Raise if runs cannot share devices, as far as a look at them can tell.

    Args:
        devices: devices that each of the runs uses, by index or UUID; empty without a GPU.
        sharing: way of sharing of each run.

    Raises:
        CollocationError: if there are no such devices, or they cannot be shared this way.
        UnknownNameError: if a device has no such MIG profile.
    """
    ways = set(parse_sharing(devices, sharing))
    if not devices:
        return
    with boards(devices) as found:
        for board in found:
            for way in ways:
                _check_board(board, way)


def parse_sharing(devices: Sequence[str], sharing: Sequence[str]) -> list[Sharing]:
    """Return the way in which each of some runs shares the same devices.

    Raises:
        CollocationError: if the ways differ, or there is no run.
    """
    ways = [Sharing.parse(text) for text in sharing]
    if len({way.kind for way in ways}) > 1:
        words = ", ".join(sorted({str(way) or "none" for way in ways}))
        hint = "Rows of a workload on the same devices share them in one way."
        raise CollocationError(f"runs together cannot share by {words}", hint)
    if not devices and any(way.kind != "none" for way in ways):
        raise CollocationError("no devices are named that could be shared", "Name one: 0.")
    return ways


def _check_board(board: Board, way: Sharing) -> None:
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
