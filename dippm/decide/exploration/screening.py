"""A surrogate answers for many designs; which of them are worth asking the default predictor.

A surrogate imitates another predictor, so what it says best is an order. The answers that a search
returns are never its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from dippm.decide.exploration.errors import ExploreError
from dippm.decide.exploration.question import Question
from dippm.decide.exploration.results import Exploration, Tried
from dippm.decide.pareto import pareto_front
from dippm.errors import ConditionsError

CONFIRMED = 32
"""Designs that are asked of the default predictor, unless somebody says how many."""


def most_promising(screened: Exploration, most: int) -> list[Tried]:
    """Return the best designs, best first: one front after the other of those that are feasible.

    Where they are too few, those follow that miss the constraints least: by the surrogate's error
    they may meet them.

    Args:
        screened: answers of the surrogate.
        most: how many.
    """
    found: list[Tried] = []
    left = list(screened.feasible)
    goals = screened.question.objectives
    while left and len(found) < most:
        points = [[o.sign * tried.values[o.name] for o in goals] for tried in left]
        members = set(pareto_front(points))
        found += [tried for i, tried in enumerate(left) if i in members]
        left = [tried for i, tried in enumerate(left) if i not in members]
    missed = [tried for tried in screened.predicted if tried.outcome.violations]
    missed.sort(key=lambda tried: sum(tried.outcome.violations.values()))
    return [*found, *missed][:most]


def refuse_what_it_cannot_screen(question: Question, most: int) -> None:
    """Refuse a space that the question's predictor was not trained for, before anything runs.

    Args:
        question: of the surrogate.
        most: designs to confirm.

    Raises:
        ExploreError: that says which condition, and what to ask for; or that `most` is no number of
            designs.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ExploreError(f"confirm is {most!r}", "Give a whole number, at least 1.")
    predictor = question.predictor.checkpoint.predictor
    refuse = getattr(predictor, "refuse_untrained", None)
    if refuse is None:
        return
    for conditions in question.space.every_condition():
        try:
            refuse(conditions)
        except ConditionsError as error:
            name = question.predictor.checkpoint.name
            raise ExploreError(
                f"{name} cannot screen this space: {error.message}",
                f"Narrow the space to what it was trained for, or leave the surrogate out. "
                f"{error.hint}",
            ) from error


def screening_note(screened: Exploration, question: Question, tried: Sequence[Tried]) -> str:
    """Return who screened how many designs, and who confirmed how many of them."""
    surrogate = screened.question.predictor.checkpoint
    teacher = question.predictor.checkpoint
    return (
        f"{len(screened.tried):,} designs were screened by {surrogate.name} {surrogate.version}; "
        f"what stands here are the answers of {teacher.name} {teacher.version} for the "
        f"{len(tried):,} most promising"
    )
