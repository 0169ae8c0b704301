"""The devices of `catalog.toml`, by name.

To add a GPU: write a table in `catalog.toml`; nothing in code. A CPU stands there once it was
measured, with `kind = "cpu"`.
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
RATES = (
    "sm_count", "boost_clock_mhz", "bandwidth_gb_s", "l2_mb", "power_limit_w",
)  # fmt: skip
PROFILE_FIELDS = ("name", "memory_mb", "sm_count", "compute_slices", "memory_slices")


@cache
def all_devices() -> tuple[Device, ...]:
    """Return every GPU of the catalogue, in its order."""
    return tuple(device for device in _catalogue() if device.kind == "gpu")


@cache
def all_cpus() -> tuple[Device, ...]:
    """Return every CPU of the catalogue: those that were measured."""
    return tuple(device for device in _catalogue() if device.kind == "cpu")


def find(name: str) -> Device:
    """Return the device of this name.

    Case, spaces, dashes and the maker's brand do not matter, and the driver's name is an alias:
    "a100 80gb" and "NVIDIA A100-SXM4-80GB" are the same card. A family name means one variant:
    "A100" is "A100-40GB" (SXM4, the card of D3.5), "H100" the SXM card, "V100" the SXM2 32 GB
    card, "P100" the PCIe 16 GB card, "cpu" the CPU that was measured, not the one at hand.

    Raises:
        UnknownNameError: if no device has this name; the hint names the closest ones.
    """
    device = _by_key().get(_key(name))
    if device is None:
        names = [device.name for device in all_devices()]
        raise UnknownNameError.of("device", name, names, "`dippm devices` lists all devices.")
    return device


@cache
def _catalogue() -> tuple[Device, ...]:
    text = files("dippm.devices").joinpath("catalog.toml").read_text(encoding="utf-8")
    return tuple(_device(name, table) for name, table in tomllib.loads(text).items())


def _device(name: str, table: dict[str, Any]) -> Device:
    fields = dict(table)
    if fields.get("kind") == "cpu":
        fields = {**dict.fromkeys(RATES), "peak_tflops": {}, **fields}
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
    return {_key(name): d for d in _catalogue() for name in (*d.aliases, d.name)}


def _key(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return "".join(word for word in words if word not in BRANDS)
