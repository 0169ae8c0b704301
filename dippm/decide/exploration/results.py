"""`Exploration`: the evaluated designs, their Pareto front, and the way back to models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dippm.base.answer import Answer, align_columns
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.exploration.design import Design
from dippm.decide.exploration.errors import ExploreError
from dippm.decide.exploration.evaluation import (
    DesignOutcome,
    SearchQuestion,
    module_of,
    without_weights,
)
from dippm.decide.pareto import pareto_front
from dippm.estimate.measure_line import Asked, measure_line
from dippm.estimate.prediction import Prediction
from dippm.estimate.pretrained.store import frameworks_of
from dippm.model.convert import read_graph

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 12
"""Rows of a front that a terminal or a notebook shows."""


@dataclass(frozen=True, slots=True)
class EvaluatedDesign:
    """A design and its outcome.

    Attributes:
        number: position in the order of evaluation.
        design: point of the space.
        outcome: its values, or why it has none.
    """

    number: int
    design: Design
    outcome: DesignOutcome

    @property
    def values(self) -> Mapping[str, float]:
        """Values by quantity and objective."""
        return self.outcome.values

    def row(self) -> dict[str, Any]:
        """Return the design as one flat mapping; unknown values are left out."""
        outcome = self.outcome
        return {
            "number": self.number,
            "state": outcome.state,
            **self.design.row(),
            **outcome.values,
            "reason": outcome.reason or None,
        }


@dataclass(frozen=True, repr=False)
class Exploration(Answer):
    """The designs that were evaluated, in their order; prints as the table of its front.

    Attributes:
        question: the question of the search.
        tried: every evaluated design.
        name: name of the study.
        screening: note on the screening that chose these designs; "" without one.
    """

    question: SearchQuestion
    tried: tuple[EvaluatedDesign, ...]
    name: str = "dippm"
    screening: str = ""

    @cached_property
    def feasible(self) -> tuple[EvaluatedDesign, ...]:
        """Designs that meet all constraints."""
        return tuple(t for t in self.tried if t.outcome.state == "ok")

    @cached_property
    def predicted(self) -> tuple[EvaluatedDesign, ...]:
        """Designs with values, feasible or not."""
        return tuple(t for t in self.tried if t.outcome.state != "failed")

    @cached_property
    def failed(self) -> tuple[EvaluatedDesign, ...]:
        """Designs that cannot be built, converted or predicted."""
        return tuple(t for t in self.tried if t.outcome.state == "failed")

    @cached_property
    def front(self) -> tuple[EvaluatedDesign, ...]:
        """Pareto front of the feasible designs, best of the first objective first."""
        objectives = self.question.objectives
        points = [[o.sign * t.values[o.name] for o in objectives] for t in self.feasible]
        first = objectives[0]
        members = [self.feasible[i] for i in sorted(pareto_front(points))]
        return tuple(sorted(members, key=lambda t: first.sign * t.values[first.name]))

    @property
    def nearest(self) -> EvaluatedDesign | None:
        """The design that misses the constraints least; None if all of them failed."""
        missed = [t for t in self.predicted if t.outcome.violations]
        return min(missed, key=lambda t: sum(t.outcome.violations.values()), default=None)

    def best(self, objective: str | None = None) -> EvaluatedDesign:
        """Return the feasible design that is best in one objective, by default the first.

        Raises:
            ExploreError: if there is no such objective, or no design is feasible.
        """
        goals = {o.name: o for o in self.question.objectives}
        goal = goals.get(objective) if objective else self.question.objectives[0]
        if goal is None:
            raise ExploreError(
                f"{objective!r} is not an objective", f"Objectives: {', '.join(goals)}."
            )
        if not self.feasible:
            raise ExploreError("no design meets the constraints", "See `nearest` and `tried`.")
        return min(self.front, key=lambda t: goal.sign * t.values[goal.name])

    def reasons(self) -> dict[str, int]:
        """Return why designs are not feasible, with counts, most frequent first."""
        return dict(Counter(t.outcome.reason for t in self.failed).most_common())

    def build(self, tried: EvaluatedDesign | Design) -> Any:
        """Return the model of a design, with weights as its function makes them.

        A model by name is built with random weights; a file or an object is returned as given.

        Raises:
            Exception: whatever the function raises.
        """
        design = tried.design if isinstance(tried, EvaluatedDesign) else tried
        architecture = self.question.space.architectures[design.architecture]
        return module_of(architecture.build(design))

    def predict(self, tried: EvaluatedDesign | Design) -> Prediction:
        """Return the full prediction of a design, with the cost of each operator.

        Raises:
            DippmError: as `dippm.predict` does.
        """
        question = self.question
        design = tried.design if isinstance(tried, EvaluatedDesign) else tried
        architecture = question.space.architectures[design.architecture]
        graph = read_graph(
            without_weights(architecture, design),
            input=question.space.input_of(design),
            trust=question.trust,
            timeout_s=question.timeout_s,
            memory_limit_mb=question.memory_limit_mb,
        )
        conditions = question.space.conditions(design)
        return question.predictor.predict_at(graph, conditions, name=str(design.architecture))

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per design with the keys `columns()`; None is absent."""
        columns = self.columns()
        return [{**dict.fromkeys(columns), **tried.row()} for tried in self.tried]

    def columns(self) -> list[str]:
        """Return the names of all columns in their order."""
        names: dict[str, None] = {}
        for tried in self.tried:
            names.update(dict.fromkeys(tried.row()))
        names.pop("reason", None)
        return [*names, "reason"]

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame with a column for the front (needs pandas)."""
        frame = super().to_pandas()
        members = {tried.number for tried in self.front}
        frame.insert(2, "front", frame["number"].isin(members))
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        checkpoints = dict.fromkeys(t.outcome.checkpoint for t in self.predicted)
        return {
            "question": self.question.describe(),
            "checkpoints": list(checkpoints),
            "notes": self.notes(),
            "front": [tried.number for tried in self.front],
            "designs": self.rows(),
            "absent": {} if self.verify else {"verify": self._check[1]},
            "verify": self.verify,
        }

    @property
    def verify(self) -> str | None:
        """The line of `dippm measure` that checks the first design of the front.

        None if there is none; `to_dict` has the reason in "absent".
        """
        return self._check[0] or None

    @property
    def verify_line(self) -> str:
        """What checks the first design of the front, or why nothing does, in one printable line."""
        verify, reason = self._check
        return printable(f"verify        {verify or 'no command: ' + reason}")

    @cached_property
    def _check(self) -> tuple[str, str]:
        if not self.front:
            return "", "no design meets the constraints"
        design, question = self.front[0].design, self.question
        conditions = question.space.conditions(design)
        checkpoint = question.predictor.checkpoint_for(conditions.device, conditions.phase)
        asked = Asked.of(
            question.space.architectures[design.architecture].make,
            question.space.input_of(design),
            trust=question.trust,
        )
        return measure_line(asked, conditions, frameworks_of(checkpoint.config))

    def notes(self) -> list[str]:
        """Return remarks: notes on objectives, and warnings with their counts."""
        found = [self.screening] if self.screening else []
        found += [f"{o.name}: {o.note}" for o in self.question.objectives if o.note]
        warned = Counter(w for t in self.feasible for w in t.outcome.warnings)
        return [
            *found,
            *(
                f"{text} ({count} design{'s' * (count > 1)})"
                for text, count in warned.most_common(8)
            ),
        ]

    @property
    def title(self) -> str:
        """Description of the search in one line."""
        counts = Counter(tried.outcome.state for tried in self.tried)
        parts = [f"{len(self.tried):,} designs", f"{len(self.feasible):,} feasible"]
        parts += [f"{counts[s]:,} {s}" for s in ("pruned", "failed") if counts[s]]
        return ", ".join([*parts, f"{len(self.front):,} on the front"])

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and cells of the front: the varied columns, then the objectives."""
        rows = [tried.row() for tried in self.front]
        designs = [tried.design.row() for tried in self.tried]
        placed = {name for design in designs for name in design}
        where = [name for name in self.columns() if name in placed]
        varied = self.question.space.varied
        differing = [
            n for n in where if n in varied or len({str(d.get(n)) for d in designs}) > 1
        ] or where[:1]
        goals = [o.name for o in self.question.objectives]
        held = dict.fromkeys([*goals, *(c.quantity for c in self.question.constraints)])
        columns = [*differing, *held]
        return columns, [[_cell(row.get(name)) for name in columns] for row in rows]

    def __repr__(self) -> str:
        return f"<Exploration {self.name}: {self.title}>"

    def __str__(self) -> str:
        columns, cells = self.table()
        more = [f"... and {len(cells) - SHOWN} more"] if len(cells) > SHOWN else []
        return "\n".join([self.title, align_columns([columns, *cells[:SHOWN]]), *more])


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return show(value) if isinstance(value, float) else printable(str(value))
