"""Device files: TOML with the catalogue's fields, for devices that are not in the catalogue.

A file is untrusted: it has to be a small regular file, and every value in it is checked.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
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
    """Return whether a device is given as a path, which ends in .toml."""
    if isinstance(device, os.PathLike):
        return True
    return isinstance(device, str) and device.strip().casefold().endswith(ENDING)


def read_device(path: str | os.PathLike[str]) -> Device:
    """Return the device of a file.

    Args:
        path: path of a TOML file with the fields of `Device`; unknown values are left out. A table
            copied from the catalogue, with its ["name"] header, is accepted too.

    Raises:
        DeviceError: if the file cannot be read or is no small TOML file, or if a field is unknown,
            missing, of another type, or implausible.
    """
    file = Path(path).expanduser()
    what = shown(file.name, 80)
    return _device(_table(_text(file), what), what)


def _device(table: Mapping[str, Any], what: str) -> Device:
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
    _device(_table(text, f"the device {shortened(device.name)}"), shown(Path(path).name, 80))
    try:
        Path(path).expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise DeviceError(
            f"{shown(Path(path))} cannot be written: {error.strerror}", "Give another path."
        ) from error


def _text(file: Path) -> str:
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


def _table(text: str, what: str) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise DeviceError(f"{what} is not TOML: {shortened(reason)}", TEMPLATE) from error
    inner = next(iter(table.values()), None)
    if len(table) == 1 and isinstance(inner, dict) and not set(table) & set(KNOWN):
        return {"name": next(iter(table)), **inner}
    return table
