"""Device files that others shared, kept in a folder of the user and found by their name."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path

from dippm.base.files import shown
from dippm.devices.device import Device
from dippm.devices.device_file import ENDING, read_device, write_device
from dippm.errors import DeviceError, shortened

LONGEST_NAME = 100
"""Characters of an imported device's name: it becomes the name of a file."""
OLD_DAYS = 365
"""From this age of a calibration on a driver or a library has usually changed since."""


def folder() -> Path:
    """Return where imported devices are kept: `DIPPM_DEVICES`, or the user's data folder."""
    if given := os.environ.get("DIPPM_DEVICES"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("APPDATA", Path.home() / "AppData" / "Roaming"))
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "dippm" / "devices"


def import_device(
    path: str | os.PathLike[str], *, name: str | None = None, replace: bool = False
) -> tuple[Device, Path]:
    """Check a device file and keep it, so that its name stands for it.

    Args:
        path: of a device file.
        name: of the device from now on; None keeps that of the file.
        replace: take the place of another device of this name.

    Returns:
        The device, and where it is kept.

    Raises:
        DeviceError: if the file is no device, or another device of this name is there.
    """
    device = read_device(path)
    if name is not None:
        device = dataclasses.replace(device, name=name)
    if not _key(device.name):
        raise DeviceError(
            f"{shortened(device.name)!r} has no letter and no digit, or over {LONGEST_NAME} "
            "characters",
            'Give it a name, name="...".',
        )
    kept = folder() / f"{_key(device.name)}{ENDING}"
    if kept.exists() and not replace:
        if read_device(kept) == device:
            return device, kept
        raise DeviceError(
            f"another {shortened(device.name)} was imported before: {shown(kept)}",
            "Give this one another name, name=..., or take its place with replace=True.",
        )
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(
            f"{shown(kept.parent)} cannot be made: {error.strerror}",
            "Set DIPPM_DEVICES to a folder that can be written.",
        ) from error
    write_device(device, kept)
    return device, kept


def find_imported(name: str) -> Device | None:
    """Return the imported device of this name; None if there is none.

    Raises:
        DeviceError: if its file was damaged since.
    """
    key = _key(name)
    kept = folder() / f"{key}{ENDING}"
    return read_device(kept) if key and kept.is_file() else None


def all_imported() -> tuple[Device, ...]:
    """Return the imported devices by name; files that are none are left out."""
    found = []
    for path in sorted(folder().glob(f"*{ENDING}")):
        try:
            found.append(read_device(path))
        except DeviceError:
            continue
    return tuple(found)


def age_of(device: Device, today: date | None = None) -> str:
    """Return how old the calibration of a device is, in words for its user."""
    found = device.calibration
    if found is None:
        return "no calibration: predicted from its data sheet"
    rows = f"calibrated with {found.rows} measurements"
    software = f" ({found.software})" if found.software else ""
    if not found.made_on:
        return f"{rows}{software}, on a day that the file does not say"
    days = ((today or datetime.now(UTC).date()) - date.fromisoformat(found.made_on)).days
    old = ": drivers and libraries change, measure anew" if days >= OLD_DAYS else ""
    return f"{rows}{software} on {found.made_on}, {max(days, 0)} days ago{old}"


def _key(name: str) -> str:
    """Return the name of the file of a device; empty if it can have none."""
    key = "-".join(re.findall(r"\w+", name.casefold()))
    return key if len(key.encode()) <= LONGEST_NAME else ""
