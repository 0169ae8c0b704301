"""`Budget`: upper limits of what one model costs, read from a TOML file of the user.

    [defaults]                       # of all models
    device = "A100"
    tolerance = "5%"                 # against a baseline; or "2sd"

    [models.classifier]
    model = "model.onnx"             # a file beside this one, or a name: "timm:resnet50"
    batch = 8
    limits = { latency_ms = 20, memory_mb = 4000, slice = "1g.10gb" }

    [models.detector]
    python = "package.module:build"  # a function that returns a module; needs trust
    input = "3,640,640"
    limits = { macs = 9e10 }

Conditions are those of `dippm.predict`, by the same names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from statistics import NormalDist
from typing import Any

from dippm.base.files import expand_home, read_toml
from dippm.base.printable import printable
from dippm.base.written import is_finite
from dippm.errors import BudgetError, UnknownNameError, shortened
from dippm.estimate.conditions import KINDS
from dippm.estimate.models.targets import Interval
from dippm.model.frontends.named import is_name

# `Tolerance`: how much more than its baseline a quantity may be.


_FORM = re.compile(r"(?P<number>\d{1,6}(\.\d{1,6})?) *(?P<unit>%|sd)")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a quantity may exceed its baseline.

    Attributes:
        number: per cent, or standard deviations of the logarithm as its interval states them; a
            quantity without an interval then may not grow at all.
        unit: "%" or "sd".
    """

    number: float
    unit: str

    @classmethod
    def parse(cls, text: str, where: str = "") -> Tolerance:
        """Read "5%" or "2sd".

        Args:
            text: the tolerance.
            where: place of the text, for the error.

        Raises:
            BudgetError: if it is neither.
        """
        found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            raise BudgetError(
                f"{where}the tolerance is {shortened(repr(text))}",
                'Give per cent, "5%", or standard deviations of the interval, "2sd".',
            )
        return cls(float(found["number"]), found["unit"])

    def __str__(self) -> str:
        return f"{self.number:g}{self.unit}"

    def most(self, baseline: float, interval: Interval | None) -> float:
        """Return the largest value that a quantity may have.

        Args:
            baseline: former value.
            interval: interval of the present value.
        """
        if self.unit == "%":
            return baseline * (1 + self.number / 100)
        if interval is None or interval.low <= 0:
            return baseline
        spread = NormalDist().inv_cdf((1 + interval.coverage) / 2)
        return baseline * exp(self.number * log(interval.high / interval.low) / (2 * spread))


MOST_BYTES = 1 << 20
MOST_MODELS = 1_000
EXAMPLE = "examples/budgets.toml is a complete example."
AT = ("upper", "value")
QUANTITIES = ("latency_ms", "memory_mb", "energy_j", "parameters", "macs", "slice")
TABLES = ("defaults", "models")
_TEXT = (str,)
CONDITIONS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("input", "framework", "checkpoint"), _TEXT),
    **KINDS,
}
"""Arguments of `dippm.predict` → the types that a file may give them."""
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,80}")
_ENTRY = re.compile(r"\w+(\.\w+)*:\w+")


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper limits of what one model costs.

    Attributes:
        name: name of the model in the file.
        model: path or name of the model; "" if `python` makes it.
        python: "package.module:function" that returns a module; "" without one.
        conditions: arguments of `dippm.predict`.
        limits: upper limit by quantity of `QUANTITIES`; a name for the slice.
        at: value that is compared with a limit: "upper", the upper end of the 90 % interval, or
            "value", the prediction. For memory it is always the 99 % bound.
        tolerance: tolerance against a baseline.
        line: line in the file, from 1.
        folder: folder of the file, to which paths are relative.
    """

    name: str
    model: str
    python: str
    conditions: Mapping[str, Any]
    limits: Mapping[str, float | str]
    at: str = "upper"
    tolerance: Tolerance = field(default_factory=lambda: Tolerance(5, "%"))
    line: int = 1
    folder: Path = Path()


def read_budgets(path: str | os.PathLike[str]) -> tuple[Budget, ...]:
    """Return the budgets of a TOML file in the format that the top of this module shows.

    Raises:
        BudgetError: if the file cannot be read or is no small TOML file, or if a table, key,
            quantity or value in it is not valid.
    """
    table, what, text = read_toml(
        path,
        BudgetError,
        most_bytes=MOST_BYTES,
        unreadable="`dippm check` writes a first one for given models with write=True.",
        too_large=EXAMPLE,
        malformed=EXAMPLE,
    )
    _known(table, TABLES, what)
    defaults = _table(table, "defaults", what)
    _known(defaults, (*CONDITIONS, "at", "tolerance"), f"{what}: [defaults]")
    models = _table(table, "models", what)
    if not models:
        raise BudgetError(f"{what} names no model", f"Write [models.NAME]. {EXAMPLE}")
    if len(models) > MOST_MODELS:
        raise BudgetError(f"{what} names {len(models):,} models", f"At most {MOST_MODELS:,} work.")
    folder = Path(path).expanduser().parent
    return tuple(
        _budget(name, _table(models, name, f"{what}: models"), defaults, what, folder, text)
        for name in models
    )


def _budget(
    name: str,
    table: Mapping[str, Any],
    defaults: Mapping[str, Any],
    what: str,
    folder: Path,
    text: str,
) -> Budget:
    where = f"{what}: {shortened(name)}"
    if not _NAME.fullmatch(name):
        raise BudgetError(f"{where} is not the name of a model", "Give a short printable name.")
    _known(table, ("model", "python", "limits", *CONDITIONS, "at", "tolerance"), where)
    given = {**defaults, **table}
    for key, kinds in {**CONDITIONS, "model": _TEXT, "python": _TEXT}.items():
        value = given.get(key)
        is_wrong = isinstance(value, bool) and bool not in kinds
        if value is not None and (is_wrong or not isinstance(value, kinds)):
            raise BudgetError(
                f"{where}: {key} is {shortened(repr(value))}",
                f"Give {' or '.join(kind.__name__ for kind in kinds)}.",
            )
    model, python = given.get("model", ""), given.get("python", "")
    if bool(model) == bool(python):
        raise BudgetError(
            f"{where} names {'two models' if model else 'no model'}",
            'Give one of model = "FILE" and python = "package.module:function".',
        )
    if python and not _ENTRY.fullmatch(python):
        raise BudgetError(
            f"{where}: python is {shortened(repr(python))}", 'Give "package.module:function".'
        )
    at = given.get("at", "upper")
    if at not in AT:
        raise BudgetError(f"{where}: at is {shortened(repr(at))}", f"Known: {', '.join(AT)}")
    conditions = {key: given[key] for key in CONDITIONS if key in given}
    for key in set(conditions) & {"device", "checkpoint"}:
        if is_path(key, conditions[key]):
            conditions[key] = str(folder / expand_home(conditions[key]))
    return Budget(
        name=name,
        model=model if not model or is_name(model) else str(folder / expand_home(model)),
        python=python,
        conditions=conditions,
        limits=_limits(_table(table, "limits", where), where),
        at=at,
        tolerance=Tolerance.parse(given.get("tolerance", "5%"), f"{where}: "),
        line=_line(name, text),
        folder=folder,
    )


def is_path(key: str, text: str) -> bool:
    """Return whether a device or a checkpoint is given by its path, not by its name."""
    return text.endswith(".toml") if key == "device" else os.sep in text or "/" in text


def _limits(table: Mapping[str, Any], where: str) -> dict[str, float | str]:
    _known(table, QUANTITIES, f"{where}: limits")
    for quantity, most in table.items():
        is_limit = isinstance(most, str) if quantity == "slice" else is_finite(most) and most > 0
        if not is_limit:
            kind = 'the name of a slice, "1g.10gb"' if quantity == "slice" else "a number above 0"
            raise BudgetError(f"{where}: {quantity} is {shortened(repr(most))}", f"Give {kind}.")
    return dict(table)


def _table(table: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, Mapping):
        raise BudgetError(f"{where}: {printable(shortened(name))} is not a table", EXAMPLE)
    return found


def _known(table: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in table:
        if name not in names:
            error = UnknownNameError.of("key", str(name), names)
            raise BudgetError(f"{where}: {error.message}", f"{error.hint}. {EXAMPLE}")


def _line(name: str, text: str) -> int:
    """Return the line where the table of a model begins; 1 if it is not written as a table."""
    quoted = rf'(?:{re.escape(name)}|"{re.escape(name)}"|\'{re.escape(name)}\')'
    head = re.compile(rf"\s*\[\s*models\s*\.\s*{quoted}\s*[\].]")
    for number, line in enumerate(text.splitlines(), 1):
        if head.match(line):
            return number
    return 1
