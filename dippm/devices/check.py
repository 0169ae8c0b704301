"""Plausibility checks of the values of a device.

The ranges are wide: they catch wrong units, wrong signs, and values that are not finite.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dippm.devices.device import CalibratedModel, Calibration, Device
from dippm.errors import DeviceError, shortened

MOST_ROWS = 100


@dataclass(frozen=True, slots=True)
class DeviceQuantity:
    """A quantity of a device: its unit, its range, and whether it is an integer."""

    unit: str
    low: float
    high: float
    whole: bool = False


QUANTITIES = {
    "memory_mb": DeviceQuantity("MiB: 16 GB are 16384", 128, 1 << 24, whole=True),
    "compute_capability": DeviceQuantity("a version such as 8.0", 1, 100),
    "sm_count": DeviceQuantity(
        "streaming multiprocessors, or compute units", 1, 10_000, whole=True
    ),
    "boost_clock_mhz": DeviceQuantity("MHz: 1.7 GHz are 1700", 100, 20_000),
    "bandwidth_gb_s": DeviceQuantity("GB/s: 1.8 TB/s are 1800", 5, 500_000),
    "l2_mb": DeviceQuantity("MiB: 512 KiB are 0.5", 0.01, 100_000),
    "power_limit_w": DeviceQuantity("W", 1, 50_000),
    "idle_power_w": DeviceQuantity("W", 0.1, 10_000),
    "memory_slices": DeviceQuantity("a number of MIG memory slices", 1, 64, whole=True),
}
RATE = DeviceQuantity("TFLOP/s, dense: 900 GFLOP/s are 0.9", 0.01, 1e6)
LOG_FACTOR = DeviceQuantity("the log of a factor", -10, 10)
LOG_FACTORS = ("log_slowdown", "log_launch", "operator_log_slowdown")
LOG_ERROR = DeviceQuantity("a log error", 0, 10)
NOVELTY = DeviceQuantity("a distance", 0, 1)
SHARE = DeviceQuantity("a share of the time", 0, 1)
SHARES_TOLERANCE = 0.01
ROWS = DeviceQuantity("measurements", 1, 1 << 30, whole=True)
RATES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")
PROFILE = (
    DeviceQuantity("usable MiB", 64, 1 << 24, whole=True),
    DeviceQuantity("SMs", 1, 10_000, whole=True),
    DeviceQuantity("compute slices", 1, 64, whole=True),
    DeviceQuantity("memory slices", 1, 64, whole=True),
)
MEMORY_TYPE = re.compile(r"(HBM[0-9]?E?|(GDDR|LPDDR|DDR)[0-9]X?)", re.IGNORECASE)
TEXTS = {"name": 80, "architecture": 80, "source": 4_000}
MOST_SOFTWARE = 200
"""Largest length of the software of a calibration, and of the name of one of its models."""


def check_device(device: Device) -> Device:
    """Check the values of a device, and return it.

    Raises:
        DeviceError: names the field, the problem, and the unit.
    """
    table = {f.name: getattr(device, f.name) for f in fields(device)}
    rows = [
        (p.name, p.memory_mb, p.sm_count, p.compute_slices, p.memory_slices)
        for p in device.mig_profiles
    ]
    known = {name: value for name, value in table.items() if value is not None}
    if device.calibration is not None:
        held = asdict(device.calibration).items()
        known["calibration"] = {name: value for name, value in held if value is not None}
    check_table({**known, "mig_profiles": rows}, shortened(str(device.name)))
    return device


def check_table(table: Mapping[str, Any], what: str) -> None:
    """Check the given fields of a device; `what` is its name in messages.

    Raises:
        DeviceError: as `check_device`.
    """
    for name, most in TEXTS.items():
        if name in table:
            _check_text(table[name], most, f"{what}: {name}")
    for name, quantity in QUANTITIES.items():
        if name in table:
            _check_number(table[name], quantity, f"{what}: {name}")
    _check_memory_type(table.get("memory_type"), f"{what}: memory_type")
    idle, limit = (table.get(name) for name in ("idle_power_w", "power_limit_w"))
    if idle is not None and limit is not None and idle >= limit:
        raise DeviceError(
            f"{what}: idle_power_w ({idle:g}) is not below power_limit_w ({limit:g})",
            "nvidia-smi shows both; leave idle_power_w out if you do not know it.",
        )
    if table.get("kind", "gpu") not in ("gpu", "cpu"):
        raise DeviceError(f'{what}: kind is not "gpu"', 'Leave it out, or write kind = "gpu".')
    for name in ("aliases", "unlisted_mig_profiles"):
        for text in _rows(table.get(name, ()), f"{what}: {name}"):
            _check_text(text, TEXTS["name"], f"{what}: {name}")
    _check_rates(table.get("peak_tflops", {}), what)
    _check_calibration(table.get("calibration"), what)
    for row in _rows(table.get("mig_profiles", ()), f"{what}: mig_profiles"):
        _check_profile(row, table, f"{what}: mig_profiles")


def _check_memory_type(value: Any, where: str) -> None:
    if value is None or (isinstance(value, str) and MEMORY_TYPE.fullmatch(value)):
        return
    raise DeviceError(
        f"{where} is {_shown(value)}",
        'Give the kind of memory as a data sheet names it: "HBM3", "GDDR6X", "LPDDR5X".',
    )


def _check_rates(rates: Any, what: str) -> None:
    if not isinstance(rates, Mapping):
        raise DeviceError(
            f"{what}: peak_tflops is {_shown(rates)}",
            "Give a rate for each precision: peak_tflops = {fp32 = 19.5, fp16 = 312}.",
        )
    for name, rate in rates.items():
        if name not in RATES:
            raise DeviceError(
                f"{what}: peak_tflops has the unknown precision {shortened(str(name))!r}",
                f"Known: {', '.join(RATES)}.",
            )
        _check_number(rate, RATE, f"{what}: peak_tflops.{name}")


def _check_calibration(found: Any, what: str) -> None:
    if found is None:
        return
    again = "Make the file again with `dippm calibrate`."
    if not isinstance(found, Mapping):
        raise DeviceError(f"{what}: calibration is {_shown(found)}", again)
    known = {f.name for f in fields(Calibration)}
    for name in found:
        if name not in known:
            raise DeviceError(
                f"{what}: calibration has the unknown field {shortened(str(name))!r}", again
            )
    for name in ("base", "log_slowdown"):
        if name not in found:
            raise DeviceError(f"{what}: calibration.{name} is missing", again)
    _check_text(found["base"], TEXTS["name"], f"{what}: calibration.base")
    numbers = {n: found.get(n, 0.0) for n in LOG_FACTORS}
    for part in ("classes", "operator_classes"):
        classes = found.get(part, {})
        if not isinstance(classes, Mapping):
            raise DeviceError(f"{what}: calibration.{part} is {_shown(classes)}", again)
        numbers |= {f"{part}.{shortened(str(name))}": value for name, value in classes.items()}
    for name, value in numbers.items():
        _check_number(value, LOG_FACTOR, f"{what}: calibration.{name}")
    texts = {name: found.get(name, "") for name in ("made_on", "software")}
    for name, text in texts.items():
        _check_text(text, MOST_SOFTWARE, f"{what}: calibration.{name}")
    _check_day(texts["made_on"], f"{what}: calibration.made_on")
    for text in _rows(found.get("regimes", ()), f"{what}: calibration.regimes"):
        _check_text(text, MOST_SOFTWARE, f"{what}: calibration.regimes")
    for number, model in enumerate(_rows(found.get("models", ()), f"{what}: calibration.models")):
        _check_model(model, f"{what}: calibration.models[{number}]", again)
    for name, quantity in (
        ("log_error", LOG_ERROR),
        ("log_error_before", LOG_ERROR),
        ("launch_log_sd", LOG_ERROR),
        ("novelty", NOVELTY),
    ):
        if name in found:
            _check_number(found[name], quantity, f"{what}: calibration.{name}")
    if "rows" in found:
        _check_number(found["rows"], ROWS, f"{what}: calibration.rows")
    if "operator_rows" in found:
        some = DeviceQuantity("measurements", 0, found.get("rows", 1), whole=True)
        _check_number(found["operator_rows"], some, f"{what}: calibration.operator_rows")


def _check_model(model: Any, where: str, again: str) -> None:
    """Check a model of a calibration."""
    if not isinstance(model, Mapping):
        raise DeviceError(f"{where} is {_shown(model)}", again)
    known = [f.name for f in fields(CalibratedModel)]
    for name in model:
        if name not in known:
            raise DeviceError(f"{where} has the unknown field {shortened(str(name))!r}", again)
    for name in known:
        if name not in model:
            raise DeviceError(f"{where}: {name} is missing", again)
    _check_text(model["name"], MOST_SOFTWARE, f"{where}: name")
    _check_number(model["log_error"], LOG_ERROR, f"{where}: log_error")
    _check_number(model["distance"], NOVELTY, f"{where}: distance")
    shares = model["shares"]
    if not isinstance(shares, Mapping):
        raise DeviceError(f"{where}: shares is {_shown(shares)}", again)
    for name, share in shares.items():
        _check_number(share, SHARE, f"{where}: shares.{shortened(str(name))}")
    if abs(sum(shares.values()) - 1) > SHARES_TOLERANCE:
        raise DeviceError(f"{where}: shares sum to {sum(shares.values()):.3g}, not to 1", again)


def _check_day(text: str, where: str) -> None:
    try:
        if text:
            datetime.date.fromisoformat(text)
    except ValueError as error:
        raise DeviceError(
            f"{where} is {shortened(text)!r}, no day", 'Write it as "2026-11-25", or leave it out.'
        ) from error


def _check_profile(row: Any, table: Mapping[str, Any], where: str) -> None:
    if not isinstance(row, list | tuple) or len(row) != 1 + len(PROFILE):
        raise DeviceError(
            f"{where} has the row {_shown(row)}",
            "A row is [name, usable MiB, SMs, compute slices, memory slices], for instance "
            '["1g.5gb", 4864, 14, 1, 1]; `nvidia-smi mig -lgip` lists them.',
        )
    _check_text(row[0], TEXTS["name"], f"{where}: name")
    for value, quantity in zip(row[1:], PROFILE, strict=True):
        _check_number(value, quantity, f"{where}: {row[0]}: {quantity.unit}")
    wholes = (table.get("memory_mb"), table.get("sm_count"), None, table.get("memory_slices", 8))
    for value, whole, quantity in zip(row[1:], wholes, PROFILE, strict=True):
        if whole is not None and value > whole:
            raise DeviceError(
                f"{where}: {row[0]} has more {quantity.unit} ({value:,}) than the device "
                f"({whole:,})",
                "A slice is a part of the device: check both numbers.",
            )


def _check_number(value: Any, quantity: DeviceQuantity, where: str) -> None:
    kind = "a whole number" if quantity.whole else "a number"
    hint = f"Give {kind} from {quantity.low:g} to {quantity.high:,g}, in {quantity.unit}."
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DeviceError(f"{where} is {_shown(value)}, not {kind}", hint)
    if quantity.whole and not isinstance(value, int):
        raise DeviceError(f"{where} is {value:g}, not a whole number", hint)
    if isinstance(value, float) and not math.isfinite(value):
        raise DeviceError(f"{where} is {value}", hint + " Leave out what is not known.")
    if not quantity.low <= value <= quantity.high:
        raise DeviceError(f"{where} is {shortened(f'{value}')}", hint)


def _check_text(value: Any, most: int, where: str) -> None:
    if not isinstance(value, str):
        raise DeviceError(f"{where} is {_shown(value)}, not a text", "Put it in quotes.")
    if len(value) > most or not value.isprintable():
        raise DeviceError(
            f"{where} is {_shown(value)}", f"Give at most {most:,} characters that can be printed."
        )


def _rows(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) > MOST_ROWS:
        raise DeviceError(f"{where} is not a list of up to {MOST_ROWS}", "Write it as [..., ...].")
    return list(value)


def _shown(value: Any) -> str:
    return shortened(repr(value))
