"""The GPUs of `catalog.toml`, by name.

To add a GPU: write a table in `catalog.toml`; nothing in code.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from dippm.devices.device import Device, MigProfile
from dippm.errors import UnknownNameError

BRANDS = ("nvidia", "geforce", "tesla", "amd", "instinct")
PROFILE_FIELDS = ("name", "memory_mb", "sm_count", "compute_slices", "memory_slices")


@cache
def all_devices() -> tuple[Device, ...]:
    """Return every device of the catalogue, in its order."""
    text = files("dippm.devices").joinpath("catalog.toml").read_text(encoding="utf-8")
    return tuple(_device(name, table) for name, table in tomllib.loads(text).items())


def find(name: str) -> Device:
    """Return the device of this name.

    Case, spaces, dashes and the maker's brand do not matter, and the driver's name is an alias:
    "a100 80gb" and "NVIDIA A100-SXM4-80GB" are the same card. A family name means one variant:
    "A100" is "A100-40GB" (SXM4, the card of D3.5), "H100" the SXM card, "V100" the SXM2 32 GB
    card, "P100" the PCIe 16 GB card.

    Raises:
        UnknownNameError: if no device has this name; the hint names the closest ones.
    """
    device = _by_key().get(_key(name))
    if device is None:
        names = [device.name for device in all_devices()]
        raise UnknownNameError.of("device", name, names, "`dippm devices` lists all devices.")
    return device


def _device(name: str, table: dict[str, Any]) -> Device:
    fields = dict(table)
    profiles = fields.pop("mig_profiles", [])
    return Device(
        name=name,
        compute_capability=fields.pop("compute_capability", None),
        aliases=tuple(fields.pop("aliases")),
        mig_profiles=tuple(
            MigProfile(**dict(zip(PROFILE_FIELDS, row, strict=True))) for row in profiles
        ),
        unlisted_mig_profiles=tuple(fields.pop("unlisted_mig_profiles", ())),
        **fields,
    )


@cache
def _by_key() -> dict[str, Device]:
    return {_key(name): d for d in all_devices() for name in (*d.aliases, d.name)}


def _key(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return "".join(word for word in words if word not in BRANDS)
