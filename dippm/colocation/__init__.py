"""Runs that share a GPU: side by side, under MPS, or each on a MIG slice of its own."""

from dippm.colocation.seat import Seat
from dippm.colocation.seating import seated
from dippm.colocation.sharing import Sharing
from dippm.colocation.undoing import undo
from dippm.errors import (
    CollocationError,
    CollocationWarning,
    DeviceBusyError,
    DevicePermissionError,
)

__all__ = [
    "CollocationError",
    "CollocationWarning",
    "DeviceBusyError",
    "DevicePermissionError",
    "Seat",
    "Sharing",
    "seated",
    "undo",
]
