"""`Question`: everything that a worker must know, and `Outcome`: what became of one design."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from dippm.decide.exploration.axes import Label
from dippm.decide.exploration.constraints import Constraint
from dippm.decide.exploration.objectives import Objective
from dippm.decide.exploration.space import Space
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S

State = Literal["ok", "infeasible", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class Question:
    """What is searched, for what, and how long a conversion may take.

    Attributes:
        space: where.
        objectives: what for.
        constraints: under which.
        predictor: that answers.
        prune: whether the user's functions are spared designs that already miss a constraint.
        trust: see `dippm.predict`, as the next two.
        timeout_s: of one conversion.
        memory_limit_mb: that one conversion may use.
    """

    space: Space
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    predictor: LoadedPredictor
    prune: bool = True
    trust: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB

    def describe(self) -> dict[str, Any]:
        """Return what makes two searches the same one, as JSON-ready data."""
        return {
            "space": self.space.describe(),
            "objectives": [f"{o.goal} {o.name}" for o in self.objectives],
            "constraints": sorted(map(str, self.constraints)),
        }


@dataclass(frozen=True, slots=True)
class Task:
    """Designs that share one graph, which one worker answers together.

    Attributes:
        chosen: labels of the axes by number of the design.
    """

    chosen: Mapping[int, Mapping[str, Label]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one design.

    Attributes:
        state: "ok", "infeasible" if it misses a constraint, "pruned" if it does and the user's
            functions were therefore not asked, "failed" if it has no values.
        values: by quantity and objective, as far as they are known.
        violations: by constraint, how far it is missed, as a share of the limit; only above 0.
        reason: why it is not "ok".
        warnings: of its prediction.
        checkpoint: that predicted; empty if none did.
        convert_s: wall time until its graph was ready; 0 if it was kept from an earlier design.
        predict_s: wall time of its prediction, and of the user's functions.
    """

    state: State
    values: Mapping[str, float] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    warnings: tuple[str, ...] = ()
    checkpoint: str = ""
    convert_s: float = 0.0
    predict_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, for `from_dict`."""
        return {**asdict(self), "warnings": list(self.warnings)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Outcome:
        """Return what `to_dict` was called on.

        Raises:
            ValueError: if this is no such document.
        """
        try:
            found = cls(**{**document, "warnings": tuple(document["warnings"])})
            numbers = (*found.values.values(), *found.violations.values())
            are_numbers = all(map(_is_number, (*numbers, found.convert_s, found.predict_s)))
            texts = (found.reason, found.checkpoint, *found.warnings)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"an outcome that is none: {error}") from error
        if found.state not in get_args(State) or not are_numbers:
            raise ValueError("an outcome whose state or values are none")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("an outcome whose texts are none")
        return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
