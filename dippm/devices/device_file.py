"""Device files: TOML with the catalogue's fields, for devices that are not in the catalogue.

A file is untrusted: it has to be a small regular file, and every value in it is checked. The second
section imports files into a folder of the user, where devices are found by name.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from dippm.base.files import open_regular, shown
from dippm.devices.catalog import device_from, is_catalogued
from dippm.devices.check import check_table
from dippm.devices.device import Device
from dippm.errors import DeviceError, ModelFileError, UnknownNameError, shortened

MOST_BYTES = 64 << 10
ENDING = ".toml"
KNOWN = tuple(field.name for field in fields(Device))
NEEDED = {"name": 'name = "My GPU"', "memory_mb": "memory_mb = 24576"}
TEMPLATE = "The README shows a whole file, and where a data sheet has each number."


def is_device_file(device: object) -> bool:
    """Return whether a device is given as a path: a path object, or text that ends in .toml."""
    if isinstance(device, os.PathLike):
        return True
    return isinstance(device, str) and device.strip().casefold().endswith(ENDING)


def read_device(path: str | os.PathLike[str]) -> Device:
    """Return the device of a file.

    Args:
        path: path of a TOML file with the fields of `Device`, without those that are not known. A
            table copied from the catalogue, with its ["name"] header, is accepted too.

    Raises:
        DeviceError: if the file cannot be read or is no small TOML file, or if a field is unknown,
            missing, of another type, or implausible.
    """
    file = Path(path).expanduser()
    what = shown(file.name, 80)
    return _device_of_table(_parse_table(_read_text(file), what), what)


def _device_of_table(table: Mapping[str, Any], what: str) -> Device:
    unknown = [name for name in table if name not in KNOWN]
    if unknown:
        error = UnknownNameError.of("field", str(unknown[0]), KNOWN)
        raise DeviceError(f"{what}: {error.message}", error.hint)
    for name, example in NEEDED.items():
        if name not in table:
            raise DeviceError(f"{what}: {name} is missing", f"Write {example}. {TEMPLATE}")
    check_table(table, what)
    name = table["name"].strip()
    if not name:
        raise DeviceError(f"{what}: name is empty", f"Write {NEEDED['name']}.")
    if table.get("kind", "gpu") != "gpu":
        raise DeviceError(
            f"{what}: a CPU cannot be described by a file",
            "A CPU has to be measured: the README says how a checkpoint is trained on it.",
        )
    for taken in filter(is_catalogued, (name, *table.get("aliases", ()))):
        raise DeviceError(
            f"{what}: {shortened(taken)} is a device of the catalogue",
            "Give your device another name, so that the two are not confused.",
        )
    rows = sorted(table.get("mig_profiles", ()), key=lambda row: (row[1], row[2]))
    source = table.get("source", "") or f"device file {what}"
    rest = {key: value for key, value in table.items() if key != "name"}
    return device_from(name, {**rest, "mig_profiles": rows, "source": source})


def write_device(device: Device, path: str | os.PathLike[str]) -> None:
    """Write a device file that `read_device` reads.

    Raises:
        DeviceError: if the file cannot be written, or would not be readable.
    """
    import tomli_w  # not at module level: the collector runs on machines with torch alone

    table = {
        name: value
        for name, value in asdict(device).items()
        if value not in (None, "", (), {}) and name not in ("aliases", "mig_profiles")
    }
    if device.mig_profiles:
        table["mig_profiles"] = [list(asdict(p).values()) for p in device.mig_profiles]
    if device.calibration:
        found = asdict(device.calibration)
        table["calibration"] = {
            name: value for name, value in found.items() if value not in (None, "", ())
        }
    text = tomli_w.dumps(table)
    _device_of_table(
        _parse_table(text, f"the device {shortened(device.name)}"), shown(Path(path).name, 80)
    )
    try:
        Path(path).expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise DeviceError(
            f"{shown(Path(path))} cannot be written: {error.strerror}", "Give another path."
        ) from error


def _read_text(file: Path) -> str:
    try:
        with open_regular(file) as opened:
            content = opened.read(MOST_BYTES + 1)
    except ModelFileError as error:
        raise DeviceError(error.message, "Give the path of a TOML file.") from error
    except OSError as error:
        raise DeviceError(
            f"{shown(file)} cannot be read: {error.strerror}", "Check the disk."
        ) from error
    if len(content) > MOST_BYTES:
        raise DeviceError(
            f"{shown(file)} is larger than {MOST_BYTES >> 10} KiB", "Is it the file of a device?"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DeviceError(f"{shown(file)} is not text in UTF-8", TEMPLATE) from error


def _parse_table(text: str, what: str) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise DeviceError(f"{what} is not TOML: {shortened(reason)}", TEMPLATE) from error
    inner = next(iter(table.values()), None)
    if len(table) == 1 and isinstance(inner, dict) and not set(table) & set(KNOWN):
        return {"name": next(iter(table)), **inner}
    return table


# Imported device files, which are kept in a folder of the user and found by name.

LONGEST_NAME = 100
"""Maximum length in bytes of an imported device's name, which becomes a file name."""
OLD_DAYS = 365
"""Age of a calibration, in days, after which drivers or libraries have usually changed."""


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
        replace: whether to replace another device with this name.

    Returns:
        The device, and the path of its copy.

    Raises:
        DeviceError: if the file is not valid, or another device has this name.
    """
    device = read_device(path)
    if name is not None:
        device = dataclasses.replace(device, name=name)
    if not _file_stem(device.name):
        raise DeviceError(
            f"{shortened(device.name)!r} has no letter and no digit, or over {LONGEST_NAME} "
            "characters",
            'Give it a name, name="...".',
        )
    kept = folder() / f"{_file_stem(device.name)}{ENDING}"
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
    key = _file_stem(name)
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


def _file_stem(name: str) -> str:
    """Return the file name of a device; "" if its name is not suitable."""
    key = "-".join(re.findall(r"\w+", name.casefold()))
    return key if len(key.encode()) <= LONGEST_NAME else ""
