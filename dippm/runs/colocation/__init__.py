"""Runs that share a GPU: by time slicing, under MPS, or each on its own MIG slice."""

from dippm.errors import (
    CollocationError,
    CollocationWarning,
    DeviceBusyError,
    DevicePermissionError,
)
from dippm.runs.colocation.allocation import seated
from dippm.runs.colocation.instance_removal import undo
from dippm.runs.colocation.sharing import Seat, Sharing

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
