"""Imported device files, kept in a folder of the user and found by name."""

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
"""Largest length of an imported device's name, which becomes a file name."""
OLD_DAYS = 365
"""Age of a calibration from which on a driver or a library has usually changed."""


def folder() -> Path:
    """Return the folder of imported devices: `DIPPM_DEVICES`, or the user's data folder."""
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
    """Check a device file and keep it, so that it can be used by name.

    Args:
        path: path of a device file.
        name: new name of the device; None keeps that of the file.
        replace: replace another device with this name.

    Returns:
        The device, and the path of its copy.

    Raises:
        DeviceError: if the file is not valid, or another device has this name.
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
            "Give this one another name, name=..., or replace it with replace=True.",
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
    """Return the imported device with a name; None if there is none.

    Raises:
        DeviceError: if its file is damaged.
    """
    key = _key(name)
    kept = folder() / f"{key}{ENDING}"
    return read_device(kept) if key and kept.is_file() else None


def all_imported() -> tuple[Device, ...]:
    """Return the imported devices by name, without invalid files."""
    found = []
    for path in sorted(folder().glob(f"*{ENDING}")):
        try:
            found.append(read_device(path))
        except DeviceError:
            continue
    return tuple(found)


def age_of(device: Device, today: date | None = None) -> str:
    """Describe the age of a device's calibration."""
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
    """Return the file name of a device; "" if its name is not suitable."""
    key = "-".join(re.findall(r"\w+", name.casefold()))
    return key if len(key.encode()) <= LONGEST_NAME else ""
