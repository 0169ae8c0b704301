"""`Difference`: breakdown of the difference in time between two predictions.

Operators are matched by the path of their module where both models have it, else by their kind.
With the parts outside operators (host, copy, residual) all rows sum to the total difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Unpack

from dippm.base.answer import Answer
from dippm.decide.explanation.explanation import Explanation, ancestors, explain, memory_by_part
from dippm.errors import ConditionsError
from dippm.estimate.conditions import CONDITIONS, check_options
from dippm.estimate.options import PairOptions

By = Literal["module", "operator", "part", "others"]
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """Cost of one module, kind of operator or part on either side.

    Attributes:
        what: path of a module, kind of operator, or name of a part.
        by: kind of `what`.
        before_ms: time on the first side; 0 if it does not occur there.
        after_ms: time on the second side.
        before_j: energy on the first side; None if not predicted.
        after_j: energy on the second side.
    """

    what: str
    by: By
    before_ms: float
    after_ms: float
    before_j: float | None
    after_j: float | None

    @property
    def change_ms(self) -> float:
        """Return the second side minus the first."""
        return self.after_ms - self.before_ms


@dataclass(frozen=True, slots=True)
class Difference(Answer):
    """Two explanations side by side.

    Attributes:
        before: first side.
        after: second side.
    """

    before: Explanation
    after: Explanation

    @property
    def change_ms(self) -> float:
        """Return the latency of the second side minus that of the first."""
        return self.after.latency_ms - self.before.latency_ms

    def share(self, change_ms: float) -> float | None:
        """Return a change over the latency of the first side; None if that is 0."""
        return change_ms / self.before.latency_ms if self.before.latency_ms else None

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Return the fields of the questions that differ: model and conditions, by name."""
        one, two = (side.prediction.to_dict() for side in (self.before, self.after))
        sides = [{"model": d["source"], **d["conditions"]} for d in (one, two)]
        return {n: (sides[0][n], sides[1][n]) for n in sides[0] if sides[0][n] != sides[1][n]}

    def changes(self, depth: int | None = None, most: int | None = None) -> list[DifferenceRow]:
        """Return the changes, the largest first; they sum to the whole on either side.

        Args:
            depth: leading names of a path that are kept; None keeps all.
            most: number of rows after which all others are summed up in one.
        """
        shared = _paths(self.before, depth) & _paths(self.after, depth)
        sides = [_sums(side, shared, depth) for side in (self.before, self.after)]
        found = [_row(key, *sides) for key in dict.fromkeys([*sides[0], *sides[1]])]
        found.sort(key=lambda row: -abs(row.change_ms))
        if most is None or len(found) <= most + 1:
            return found
        return [*found[:most], _sum_rows(found[most:])]

    def rows(self, depth: int | None = None) -> list[dict[str, Any]]:
        """Return one flat mapping for each of `changes`."""
        return [
            {**asdict(row), "change_ms": row.change_ms, "change_share": self.share(row.change_ms)}
            for row in self.changes(depth)
        ]

    def memory(self) -> dict[str, tuple[float, float]]:
        """Return the parts of the memory on either side in MB; empty if one side has none."""
        one, two = self.before.prediction.memory_parts, self.after.prediction.memory_parts
        if one is None or two is None:
            return {}
        sizes, others = memory_by_part(one), memory_by_part(two)
        return {name: (size, others[name]) for name, size in sizes.items()}

    def to_dict(self, depth: int | None = None) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        sides = [side.prediction.to_dict() for side in (self.before, self.after)]
        kept = ("source", "conditions", "latency_ms", "energy_j", "memory_mb", "warnings", "verify")
        return {
            "before": {key: sides[0][key] for key in kept},
            "after": {key: sides[1][key] for key in kept},
            "changed": {name: list(values) for name, values in self.changed.items()},
            "change_ms": self.change_ms,
            "change_share": self.share(self.change_ms),
            "rows": self.rows(depth),
            "memory": {name: list(values) for name, values in self.memory().items()},
            "provenance": [side["provenance"] for side in sides],
        }


def diff(
    before: Any, after: Any = None, framework: str | None = None, **options: Unpack[PairOptions]
) -> Difference:
    """Break the difference in time between two predictions down.

    Args:
        before: a model as `predict` takes it, or an `Explanation`.
        after: likewise; None is the same model, and one of the options must then be a pair.
        framework: see `predict`.
        **options: see `dippm.Options`. A condition that is a tuple or list of two values
            (`precision=("fp32", "fp16")`) gives each side its own.

    Raises:
        ConditionsError: if nothing differs, or the checkpoint predicts only the whole.
        DippmError: as `predict` does.
    """
    check_options(options, PairOptions)
    one, two = _sides(options)
    if after is None and one == two:
        raise ConditionsError(
            "nothing differs between the two sides",
            'Give a second model, or two values of one condition: precision="fp32,fp16".',
        )
    first = _explain_side(before, framework, one)
    other = first.prediction if after is None else after
    return Difference(first, _explain_side(other, framework, two))


def _sides(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    sides: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name, value in options.items():
        pair = name in CONDITIONS and isinstance(value, tuple | list)
        if pair and len(value) != 2:
            raise ConditionsError(
                f"{name} has {len(value)} values", f"Give one for both sides, or two: {name}=..."
            )
        for side, own in zip(sides, value if pair else (value, value), strict=True):
            side[name] = own
    return sides


def _explain_side(source: Any, framework: str | None, options: dict[str, Any]) -> Explanation:
    if not isinstance(source, Explanation):
        return explain(source, framework, **options)
    return explain(source.prediction, framework, **options) if options else source


def _cut(path: str, depth: int | None) -> str:
    lies_in = ancestors(path)
    return lies_in[min(depth, len(lies_in)) - 1] if depth and lies_in else path


def _paths(side: Explanation, depth: int | None) -> set[str]:
    return {_cut(row.cost.path, depth) for row in side.operators} - {""}


Key = tuple[By, str]
Cost = tuple[float, float | None]


def _sums(side: Explanation, shared: set[str], depth: int | None) -> dict[Key, Cost]:
    known = "energy_j" not in side.absent
    found: dict[Key, Cost] = {}
    for row in side.operators:
        path = _cut(row.cost.path, depth)
        key: Key = ("module", path) if path in shared else ("operator", row.cost.op)
        time_ms, energy_j = found.get(key, (0.0, 0.0 if known else None))
        if energy_j is not None:
            energy_j += row.cost.energy_j or 0.0
        found[key] = time_ms + row.cost.time_ms, energy_j
    return found | {("part", part.name): (part.time_ms, part.energy_j) for part in side.parts}


def _row(key: Key, before: dict[Key, Cost], after: dict[Key, Cost]) -> DifferenceRow:
    by, what = key
    costs = []
    for side in (before, after):
        known = all(energy is not None for _, energy in side.values())
        costs.append(side.get(key, (0.0, 0.0 if known else None)))
    (before_ms, before_j), (after_ms, after_j) = costs
    return DifferenceRow(what, by, before_ms, after_ms, before_j, after_j)


def _sum_rows(rows: Iterable[DifferenceRow]) -> DifferenceRow:
    several = list(rows)
    energies = [[getattr(row, name) for row in several] for name in ("before_j", "after_j")]
    before_j, after_j = (None if None in side else sum(side) for side in energies)
    return DifferenceRow(
        f"{len(several)} {OTHERS}",
        "others",
        sum(row.before_ms for row in several),
        sum(row.after_ms for row in several),
        before_j,
        after_j,
    )
