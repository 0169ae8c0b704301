"""`Carbon`: grams of CO2 that a kilowatt hour emits by region; from a TOML file of the user.

    as_of = "2026-01"
    pue = 1.2                                    # of regions without their own; 1 without

    [regions]
    FR = { g_per_kwh = 50 }
    PL = { g_per_kwh = 650, pue = 1.4 }

    [where]                                      # which region a GPU can be had in
    "H100-SXM-80GB" = "PL"

No intensity is known to DIPPM. PUE is the power usage effectiveness of a data centre: energy of all
of it by that of its machines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dippm import devices
from dippm.base.files import read_toml
from dippm.base.written import is_finite
from dippm.devices import Device
from dippm.errors import CarbonError, UnknownNameError, shortened

MOST_BYTES = 256 << 10
TABLES = ("as_of", "pue", "regions", "where")
HIGHEST_G = 3_000.0
"""Highest accepted grams of CO2 of a kilowatt hour; lignite emits about 1,100."""
HIGHEST_PUE = 5.0
EXAMPLE = "examples/carbon.toml is a complete example."


@dataclass(frozen=True, slots=True)
class Region:
    """A region of the electricity grid.

    Attributes:
        name: name of the region.
        g_per_kwh: grams of CO2 equivalent that a kilowatt hour emits.
        pue: energy of the data centre over that of its machines, at least 1.

    Raises:
        CarbonError: if a number is out of range.
    """

    name: str
    g_per_kwh: float
    pue: float = 1.0

    def __post_init__(self) -> None:
        _number(self.g_per_kwh, 0.0, HIGHEST_G, f"{shortened(self.name)}: g_per_kwh")
        check_pue(self.pue, shortened(self.name))

    def grams(self, energy_kwh: float) -> float:
        """Return what the energy of machines emits, with that of the data centre around them."""
        return energy_kwh * self.pue * self.g_per_kwh


@dataclass(frozen=True, slots=True)
class Carbon:
    """Intensities by region.

    Attributes:
        regions: regions by name.
        where: name of the region by device name.
        as_of: date and source of the intensities, as the file states them; "" otherwise.
        source: the file, for messages.
    """

    regions: Mapping[str, Region]
    where: Mapping[str, str] = field(default_factory=dict)
    as_of: str = ""
    source: str = ""

    def region(self, name: str) -> Region:
        """Return a region by name; case does not matter.

        Raises:
            CarbonError: if the region is unknown.
        """
        folded = {known.casefold(): region for known, region in self.regions.items()}
        found = folded.get(name.strip().casefold())
        if found is None:
            error = UnknownNameError.of("region", name, self.regions)
            raise CarbonError(f"{self.source}: {error.message}", error.hint)
        return found

    def of(self, device: Device, region: str | None) -> Region | None:
        """Return the region that a device is in: its own, else the one that was asked for."""
        name = self.where.get(device.name, region)
        return None if name is None else self.region(name)


CarbonLike = str | os.PathLike[str] | Mapping[str, Any] | Carbon
"""The path of a file, grams per kilowatt hour by region, the tables of a file, or `Carbon`."""


def carbon_of(carbon: CarbonLike) -> Carbon:
    """Return intensities, or those that a file or a mapping lists.

    Raises:
        CarbonError: see `read_carbon`.
    """
    if isinstance(carbon, Carbon):
        return carbon
    if isinstance(carbon, Mapping):
        if "regions" in carbon:
            return _carbon(carbon, "the intensities")
        table = {"regions": {name: {"g_per_kwh": grams} for name, grams in carbon.items()}}
        return _carbon(table, "the intensities")
    return read_carbon(carbon)


def read_carbon(path: str | os.PathLike[str]) -> Carbon:
    """Return the intensities that a TOML file lists, see the top of this module.

    Raises:
        CarbonError: if the file cannot be read or is no small TOML file, or a table, region, device
            or number in it is none.
    """
    table, what, _ = read_toml(
        path,
        CarbonError,
        most_bytes=MOST_BYTES,
        unreadable=f"Give the path of a TOML file. {EXAMPLE}",
        too_large=EXAMPLE,
        malformed=EXAMPLE,
    )
    return _carbon(table, what)


def check_pue(pue: Any, where: str = "pue") -> float:
    """Return a power usage effectiveness.

    Raises:
        CarbonError: if it is not a PUE.
    """
    return _number(pue, 1.0, HIGHEST_PUE, f"{where}: pue" if where != "pue" else "pue")


def _carbon(table: Mapping[str, Any], what: str) -> Carbon:
    for name in table:
        if name not in TABLES:
            error = UnknownNameError.of("table", str(name), TABLES)
            raise CarbonError(f"{what}: {error.message}", f"{error.hint}. {EXAMPLE}")
    default_pue = check_pue(table.get("pue", 1.0), what)
    regions: dict[str, Region] = {}
    for name, one in _table(table, "regions", what).items():
        if not isinstance(one, Mapping) or not set(one) <= {"g_per_kwh", "pue"}:
            raise CarbonError(
                f"{what}: the region {shortened(name)} is {shortened(repr(one))}",
                f"Write {{ g_per_kwh = 50, pue = 1.2 }}, the pue if it is known. {EXAMPLE}",
            )
        if name.casefold() in map(str.casefold, regions):
            raise CarbonError(f"{what}: {shortened(name)} occurs twice", "Keep one.")
        regions[name] = Region(name, one.get("g_per_kwh", "missing"), one.get("pue", default_pue))
    if not regions:
        raise CarbonError(f"{what} names no region", f"Write [regions] and a line. {EXAMPLE}")
    found = Carbon(regions, {}, shortened(str(table.get("as_of", ""))), what)
    where: dict[str, str] = {}
    for device, region in _table(table, "where", what).items():
        if not isinstance(region, str):
            raise CarbonError(f"{what}: {shortened(device)} is in {region!r}", "Name a region.")
        try:
            where[devices.find(device).name] = found.region(region).name
        except UnknownNameError as error:
            raise CarbonError(f"{what}: {error.message}", error.hint) from error
    return Carbon(regions, where, found.as_of, what)


def _table(table: Mapping[str, Any], name: str, what: str) -> Mapping[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, Mapping):
        raise CarbonError(f"{what}: {name} is not a table", f"Write [{name}]. {EXAMPLE}")
    return found


def _number(value: Any, least: float, most: float, where: str) -> float:
    if not is_finite(value) or not least <= value <= most:
        raise CarbonError(
            f"{where} is {shortened(repr(value))}", f"Give a number, {least:g} to {most:g}."
        )
    return float(value)
