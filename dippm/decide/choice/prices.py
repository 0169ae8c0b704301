"""`Prices`: hourly prices of GPUs and slices, from a TOML file of the user.

    as_of = "2026-01"
    currency = "EUR"

    [per_hour]
    "A100-80GB" = 1.80
    T4 = 0.40

    [slices."A100-80GB"]
    "1g.10gb" = 0.35

DIPPM ships no prices. A slice without a price of its own costs its share of the GPU, see
`taken_fraction`. Devices are named as everywhere (`dippm devices`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dippm import devices
from dippm.base.files import read_toml
from dippm.devices import Device, MigProfile, taken_fraction
from dippm.errors import PriceError, UnknownNameError, shortened
from dippm.estimate.place import slice_of

MOST_BYTES = 64 << 10
TABLES = ("as_of", "currency", "per_hour", "slices")
LONGEST_CURRENCY = 16
LOWEST, HIGHEST = 1e-6, 1e9
"""Range of hourly prices, in any currency."""
EXAMPLE = "examples/prices.toml is a complete example."


@dataclass(frozen=True, slots=True)
class Prices:
    """Hourly prices.

    Attributes:
        per_hour: price by name of the device, in `currency`.
        slices: price by names of the device and of the slice.
        currency: currency of the prices; "" if not given.
        source: path of the file, for messages; "" without one.
        as_of: date and source of the prices, as the file states them; "" otherwise.
    """

    per_hour: Mapping[str, float]
    slices: Mapping[tuple[str, str], float] = field(default_factory=dict)
    currency: str = ""
    source: str = ""
    as_of: str = ""

    def of(self, device: Device, mig: MigProfile | None) -> float | None:
        """Return the hourly price of a GPU or of a slice of it; None if it has none.

        A slice without a price of its own has that of the GPU times its share of it.
        """
        whole = self.per_hour.get(device.name)
        if mig is None:
            return whole
        own = self.slices.get((device.name, mig.name))
        if own is not None or whole is None:
            return own
        return whole * taken_fraction(mig, device)


PricesLike = str | os.PathLike[str] | Mapping[str, Any] | Prices
"""The path of a file, hourly prices by name of the device, the tables of a file, or `Prices`."""


def prices_of(prices: PricesLike, given: Iterable[Device] = ()) -> Prices:
    """Return prices that are given as `Prices`, a mapping or a file.

    Args:
        prices: see `PricesLike`.
        given: devices that are not in the catalogue, but may have a price.

    Raises:
        PriceError: see `read_prices`.
    """
    if isinstance(prices, Prices):
        for name, price in (*prices.per_hour.items(), *prices.slices.items()):
            _price(price, f"the prices: {name}")
        return prices
    if isinstance(prices, Mapping):
        table = prices if {"per_hour", "slices"} & {*prices} else {"per_hour": prices}
        return _prices(table, "the prices", tuple(given))
    return read_prices(prices, given)


def read_prices(path: str | os.PathLike[str], given: Iterable[Device] = ()) -> Prices:
    """Return the prices of a TOML file in the format that the top of this module shows.

    Args:
        path: path of the file.
        given: devices that are not in the catalogue, but may have a price.

    Raises:
        PriceError: if the file cannot be read or is no small TOML file, if a device, slice or
            table in it is not known or occurs twice, or if a price is not a number above 0.
    """
    table, what, _ = read_toml(
        path,
        PriceError,
        most_bytes=MOST_BYTES,
        unreadable=f"Give the path of a TOML file. {EXAMPLE}",
        too_large=f"Is it a file of prices? {EXAMPLE}",
        malformed=EXAMPLE,
    )
    return _prices(table, what, tuple(given))


def _prices(table: Mapping[str, Any], what: str, given: tuple[Device, ...]) -> Prices:
    for name in table:
        if name not in TABLES:
            error = UnknownNameError.of("table", str(name), TABLES)
            raise PriceError(f"{what}: {error.message}", f"{error.hint}. {EXAMPLE}")
    currency = table.get("currency", "")
    is_text = isinstance(currency, str) and currency.isprintable()
    if not is_text or len(currency) > LONGEST_CURRENCY:
        raise PriceError(f"{what}: currency is not a short text", 'Write it as currency = "EUR".')
    whole: dict[str, float] = {}
    for name, price in _table(table, "per_hour", what).items():
        device = _device(name, given, what)
        if device.name in whole:
            raise PriceError(
                f"{what}: {device.name} has two prices", f"{name} is another name of it: keep one."
            )
        whole[device.name] = _price(price, f"{what}: {name}")
    slices: dict[tuple[str, str], float] = {}
    for name, of_slices in _table(table, "slices", what).items():
        device = _device(name, given, what)
        if not isinstance(of_slices, Mapping):
            raise PriceError(
                f"{what}: the slices of {name} are not a table",
                f'Write [slices."{name}"] and a line for each slice. {EXAMPLE}',
            )
        for profile, price in of_slices.items():
            key = device.name, _slice_name(device, profile, what)
            slices[key] = _price(price, f"{what}: {name} {profile}")
    if not whole and not slices:
        raise PriceError(f"{what} has no price", f"Write [per_hour] and a line. {EXAMPLE}")
    return Prices(whole, slices, currency, what, shortened(str(table.get("as_of", ""))))


def _table(table: Mapping[str, Any], name: str, what: str) -> Mapping[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, Mapping):
        raise PriceError(f"{what}: {name} is not a table", f"Write [{name}]. {EXAMPLE}")
    return found


def _device(name: str, given: tuple[Device, ...], what: str) -> Device:
    mine = (d for d in given if d.name.casefold() == str(name).strip().casefold())
    found = next(mine, None)
    if found is not None:
        return found
    try:
        return devices.find(str(name))
    except UnknownNameError as error:
        hint = error.hint.partition(" Another one")[0]
        raise PriceError(
            f"{what}: {error.message}",
            f"{hint} A GPU of your own has a price under its name where its file is among "
            "devices=... .",
        ) from error


def _slice_name(device: Device, name: str, what: str) -> str:
    if name in device.unlisted_mig_profiles:
        return name
    try:
        profile = slice_of(device, name)
    except UnknownNameError as error:
        raise PriceError(f"{what}: {error.message}", error.hint) from error
    assert profile is not None
    return profile.name


def _price(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not LOWEST <= value <= HIGHEST:
        raise PriceError(
            f"{where}: the price is {shortened(repr(value))}",
            f"Give the price of an hour as a number above 0, from {LOWEST:g} to {HIGHEST:g}; leave "
            "out what has none.",
        )
    return float(value)
