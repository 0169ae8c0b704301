"""Runs that share a GPU: side by side, under MPS, or each on a MIG slice of its own."""

from dippm.colocation.seat import Seat
from dippm.colocation.seating import seated, undo
from dippm.colocation.sharing import Sharing
from dippm.errors import CollocationError, DeviceBusyError, DevicePermissionError

__all__ = [
    "CollocationError",
    "DeviceBusyError",
    "DevicePermissionError",
    "Seat",
    "Sharing",
    "seated",
    "undo",
]
