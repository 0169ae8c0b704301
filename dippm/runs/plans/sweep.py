"""A sweep: one run per combination of parameters, from a YAML file as in radT.

name: study                 file: train.py              experiment: 1
devices: 0                  collocation: "-"            listeners: smi+top
method: grid                # or random: `runs` combinations, drawn with `seed`
parameters:
batch-size: {values: [32, 64]}
lr: {min: 0.0001, max: 0.1, log: true}     # random only
"""

from __future__ import annotations

import itertools
import math
import random
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dippm.errors import PlanError, UnknownNameError
from dippm.runs.plans.row import PlanRow, Status, read_row, read_status

if TYPE_CHECKING:
    import yaml

FIELDS = (
    "name",
    "experiment",
    "collocation",
    "devices",
    "listeners",
    "file",
    "model",
    "method",
    "parameters",
    "runs",
    "seed",
    "parent",
    "status",
)
"""The last two are written by radT: the group of runs, and their status."""
METHODS = ("grid", "random")
MOST_ROWS = 100_000
MOST_PARTS = 500_000
LARGEST_NUMBER = 2**63
MOST_CHARACTERS = 16 << 20
"""Limit for the parameters of all runs."""
_RADT_STATUS = re.compile(r"(?P<status>\w+) \S+ \((?P<params>.*)\)", re.DOTALL)
FEWER = "Leave values or parameters out, or reduce the number of runs."


def read_sweep(data: bytes) -> tuple[PlanRow, ...]:
    """Return one row per combination, deterministically.

    Raises:
        PlanError: if the file is invalid.
        UnknownNameError: if a field or method is unknown.
    """
    held = _document(data)
    for name in held:
        if name not in FIELDS:
            raise UnknownNameError.of("field", str(name), FIELDS)
    _check_parts(held)
    method = str(held.get("method", "grid"))
    if method not in METHODS:
        raise UnknownNameError.of("method", method, METHODS)
    axes = _axes(held.get("parameters"))
    found = _grid(axes, held) if method == "grid" else _random(axes, held)
    before = _noted_by_radt(held.get("status"))
    cells = {name.title(): _text(name, held.get(name, "")) for name in FIELDS[:7]}
    rows, size = [], 0
    for number, values in enumerate(found, 1):
        plain = " ".join(f"--{name} {value}" for name, value in values.items())
        words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        row = {**cells, "Workload": f"{number - 1:03}", "Params": shlex.join(words)}
        size += len(row["Params"])
        if size > MOST_CHARACTERS:
            what = f"the parameters of its runs have more than {MOST_CHARACTERS:,} characters"
            raise PlanError(what, FEWER)
        rows.append(read_row(number, row)._replace(status=before.get(plain, Status())))
    return tuple(rows)


def _document(data: bytes) -> dict[Any, Any]:
    try:
        import yaml
    except ImportError as error:
        raise PlanError("PyYAML is not installed", "pip install 'dippm[track]'") from error
    try:
        held = yaml.load(data, _loader())
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise PlanError(f"it is no YAML: {error}", "Mend the line that it names.") from error
    if not isinstance(held, dict):
        raise PlanError("it is no YAML mapping", f"Its fields are {', '.join(FIELDS[:11])}.")
    return held


def _loader() -> type[yaml.SafeLoader]:
    """Return YAML's safe loader with a limit on merge keys (`<<: *a`).

    Merging copies, so a few lines that each merge the previous one several times could fill memory.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML is untyped
        merged = 0

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            for key, value in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                        if isinstance(part, yaml.MappingNode):
                            self.flatten_mapping(part)
                            self._count(len(part.value))
            super().flatten_mapping(node)

        def _count(self, merged: int) -> None:
            self.merged += merged
            if self.merged > MOST_PARTS:
                raise ValueError(f"it merges more than {MOST_PARTS:,} parts")

    return Loader


def _check_parts(held: Any) -> None:
    """Refuse endless expansion and huge integers.

    YAML can reference one part in many places, even in itself, and has notations of integers whose
    digits Python does not limit.
    """
    stack, seen = [held], 0
    while stack:
        item = stack.pop()
        seen += 1
        if seen > MOST_PARTS:
            hint = "Write the values once, without names for parts of it (& and *)."
            raise PlanError(f"it has more than {MOST_PARTS:,} parts", hint)
        if isinstance(item, int) and abs(item) > LARGEST_NUMBER:
            raise PlanError("it has a whole number of more than 64 bits", "Write a smaller one.")
        if isinstance(item, dict):
            stack += [*item, *item.values()]
        elif isinstance(item, list | tuple | set):
            stack += item


def _axes(parameters: Any) -> dict[str, Any]:
    if not isinstance(parameters, dict) or not parameters:
        hint = "Write parameters: {batch-size: {values: [32, 64]}}."
        raise PlanError("the field parameters holds no parameter", hint)
    return {str(name): _axis(str(name), given) for name, given in parameters.items()}


def _axis(name: str, given: Any) -> Any:
    """Return the values of a parameter, or the mapping of its range."""
    values = given.get("values") if isinstance(given, dict) else given
    if isinstance(given, dict) and "values" not in given:
        low, high = given.get("min"), given.get("max")
        if not {"min", "max"} <= set(given) <= {"min", "max", "log"} or not _is_ordered(low, high):
            hint = "Give {values: [...]}, or {min: 1, max: 9} with log: true for a factor."
            raise PlanError(f"parameter {name!r} has neither values nor a range", hint)
        if given.get("log") and float(low or 0) <= 0:
            raise PlanError(
                f"parameter {name!r}: the logarithm needs a min above 0",
                "Raise min, or leave log out.",
            )
        return given
    values = values if isinstance(values, list) else [values]
    if not values or not all(isinstance(value, str | int | float) for value in values):
        hint = "Write text or numbers between brackets."
        raise PlanError(f"parameter {name!r} has values that are neither text nor number", hint)
    return values


def _is_ordered(low: Any, high: Any) -> bool:
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return False
    return math.isfinite(low) and math.isfinite(high) and low < high


def _grid(axes: dict[str, Any], held: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    for name, values in axes.items():
        if isinstance(values, dict):
            hint = "Give its values, or method: random with runs."
            raise PlanError(f"a grid has no values of parameter {name!r}", hint)
    if "runs" in held:
        raise PlanError("a grid runs every combination", "Leave runs out, or use method: random.")
    if math.prod(map(len, axes.values())) > MOST_ROWS:
        hint = "Use method: random with runs, or fewer values."
        raise PlanError(f"the grid has more than {MOST_ROWS:,} combinations", hint)
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def _random(axes: dict[str, Any], held: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    chance = random.Random(_whole("seed", held.get("seed", 0), 0))
    if any(isinstance(values, dict) for values in axes.values()):
        if "runs" not in held:
            raise PlanError("a range has no end of values", "Say how many runs, as runs: 20.")
        runs = _whole("runs", held["runs"], 1)
        return ({name: _draw(axis, chance) for name, axis in axes.items()} for _ in range(runs))
    total = math.prod(map(len, axes.values()))
    if total > sys.maxsize:
        raise PlanError("these parameters have more combinations than can be counted", FEWER)
    runs = min(total, _whole("runs", held.get("runs", min(total, MOST_ROWS)), 1))
    return (_combination(axes, place) for place in chance.sample(range(total), runs))


def _draw(axis: Any, chance: random.Random) -> Any:
    if isinstance(axis, list):
        return chance.choice(axis)
    low, high = axis["min"], axis["max"]
    if axis.get("log"):
        value = math.exp(chance.uniform(math.log(low), math.log(high)))
    elif isinstance(low, int) and isinstance(high, int):
        return chance.randint(low, high)
    else:
        value = chance.uniform(low, high)
    return round(value) if isinstance(low, int) and isinstance(high, int) else float(f"{value:.6g}")


def _combination(axes: dict[str, Any], place: int) -> dict[str, Any]:
    """Return the combination of a grid at an index; the last parameter varies fastest."""
    found = {}
    for name in reversed(axes):
        place, digit = divmod(place, len(axes[name]))
        found[name] = axes[name][digit]
    return {name: found[name] for name in axes}


def _whole(name: str, given: Any, least: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given:
        raise PlanError(
            f"{name}: {given!r} is no whole number of {least} or more", f"Write {name}: {least}."
        )
    if name == "runs" and given > MOST_ROWS:
        raise PlanError(f"runs: {given:,} are more than {MOST_ROWS:,}", FEWER)
    return given


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str | int | float):
        raise PlanError(f"the field {name} holds neither text nor number", f"Write {name}: text.")
    return str(given)


def _noted_by_radt(status: Any) -> dict[str, Status]:
    """Return the status that radT recorded for combinations, by its notation of parameters."""
    found = {}
    for text in status.values() if isinstance(status, dict) else ():
        match = _RADT_STATUS.fullmatch(str(text).strip())
        if match:
            found[match["params"]] = read_status(match["status"])
    return found
