"""`SearchQuestion`: everything that a worker has to know. `DesignOutcome`: result of one design."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from dippm.decide.exploration.constraints import Constraint
from dippm.decide.exploration.design import Label
from dippm.decide.exploration.objectives import Objective
from dippm.decide.exploration.space import Space
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S

State = Literal["ok", "infeasible", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """The question of a search.

    Attributes:
        space: design space.
        objectives: objectives.
        constraints: constraints.
        predictor: loaded predictor.
        prune: whether the user's functions are not called for designs that miss a constraint.
        trust: see `dippm.predict`, as the next two.
        timeout_s: time limit of one conversion in s.
        memory_limit_mb: memory limit of one conversion in MiB.
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
        """Return the identity of the search as JSON-ready data."""
        return {
            "space": self.space.describe(),
            "objectives": [f"{o.goal} {o.name}" for o in self.objectives],
            "constraints": sorted(map(str, self.constraints)),
        }


@dataclass(frozen=True, slots=True)
class Task:
    """Designs that share one graph and are evaluated together by one worker.

    Attributes:
        chosen: labels of the axes, by number of the design.
    """

    chosen: Mapping[int, Mapping[str, Label]]


@dataclass(frozen=True, slots=True)
class DesignOutcome:
    """Outcome of one design.

    Attributes:
        state: "ok", "infeasible" if it misses a constraint, "pruned" if the user's functions were
            therefore not called, "failed" if it has no values.
        values: known values, by quantity and objective.
        violations: relative excess over the limit by constraint, for those that are missed.
        reason: why the state is not "ok".
        warnings: warnings of its prediction.
        checkpoint: checkpoint that predicted; "" without a prediction.
        convert_s: wall time until its graph was ready; 0 if the graph was cached.
        predict_s: wall time of its prediction and of the user's functions.
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
        """Return JSON-ready data that `from_dict` reads."""
        return {**asdict(self), "warnings": list(self.warnings)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> DesignOutcome:
        """Return the outcome of a document that `to_dict` made.

        Raises:
            ValueError: if it is not such a document.
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
