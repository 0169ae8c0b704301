"""The devices of `catalog.toml`, by name.

To add a GPU: write a table in `catalog.toml`; nothing in code. A CPU is listed once it was
measured, with `kind = "cpu"`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from dippm.devices.device import CalibratedModel, Calibration, Device, MigProfile
from dippm.errors import UnknownNameError, shortened

BRANDS = ("nvidia", "geforce", "tesla", "amd", "instinct")


_OTHER_KINDS = re.compile(
    r"tpu|npu|ipu|gaudi|habana|inferentia|trainium|ascend|radeon|"
    r"\b(?:apple|mps|intel|arc)\b|\bm[1-5](?:\b|pro|max|ultra)"
)
"""Names of accelerators of other kinds, for which no name of the catalogue is suggested."""


@cache
def all_devices() -> tuple[Device, ...]:
    """Return every GPU of the catalogue, in its order."""
    return tuple(device for device in _catalogue() if device.kind == "gpu")


@cache
def all_cpus() -> tuple[Device, ...]:
    """Return every CPU of the catalogue, all of them measured."""
    return tuple(device for device in _catalogue() if device.kind == "cpu")


def find(name: str) -> Device:
    """Return the device with a name.

    Case, spaces, dashes and the vendor's brand do not matter, and the driver's name is an alias:
    "a100 80gb" and "NVIDIA A100-SXM4-80GB" are the same card. A family name stands for one
    variant: "A100" for "A100-40GB" (SXM4, the card of D3.5), "H100" for the SXM card, "V100" for
    the SXM2 32 GB card, "P100" for the PCIe 16 GB card, "cpu" for the measured CPU, not this one.

    Raises:
        UnknownNameError: if no device has this name; the hint names the closest ones.
    """
    device = _by_key().get(_key(name))
    if device is None and _OTHER_KINDS.search(name.casefold()):
        raise UnknownNameError(
            f"unknown device {shortened(name)!r}",
            "No accelerator of this kind is predicted: `dippm devices` lists those that are.",
        )
    if device is None:
        names = [device.name for device in all_devices()]
        raise UnknownNameError.of(
            "device",
            name,
            names,
            "`dippm devices` lists all devices. "
            'Another one is given as a file, device="my_gpu.toml".',
        )
    return device


@cache
def _catalogue() -> tuple[Device, ...]:
    text = files("dippm.devices").joinpath("catalog.toml").read_text(encoding="utf-8")
    return tuple(device_from(name, table) for name, table in tomllib.loads(text).items())


def device_from(name: str, table: Mapping[str, Any]) -> Device:
    """Return the device of a table from the catalogue or from a checked device file."""
    lists = {
        "mig_profiles": tuple(MigProfile(*row) for row in table.get("mig_profiles", ())),
        "aliases": tuple(table.get("aliases", ())),
        "unlisted_mig_profiles": tuple(table.get("unlisted_mig_profiles", ())),
    }
    found = table.get("calibration")
    calibration = {"calibration": _calibration(found)} if found else {}
    return Device(name=name, **{**table, **lists, **calibration})


def _calibration(table: Mapping[str, Any]) -> Calibration:
    models = tuple(CalibratedModel(**model) for model in table.get("models", ()))
    return Calibration(**{**table, "models": models, "regimes": tuple(table.get("regimes", ()))})


def is_catalogued(name: str) -> bool:
    """Return whether a name or alias is in the catalogue."""
    return _key(name) in _by_key()


@cache
def _by_key() -> dict[str, Device]:
    return {_key(name): d for d in _catalogue() for name in (*d.aliases, d.name)}


def _key(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return "".join(word for word in words if word not in BRANDS)
