"""`explore`: a design space → what was tried, and the front of what is best."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dippm.api import load
from dippm.base.progress import tell
from dippm.decide.exploration.constraints import constraints_of
from dippm.decide.exploration.crew import Crew, Engine
from dippm.decide.exploration.errors import ExploreError, NoFeasibleDesignError
from dippm.decide.exploration.local import HereEngine, LocalEngine, can_fork
from dippm.decide.exploration.objectives import Objective, objectives_of
from dippm.decide.exploration.question import Outcome, Question, Task
from dippm.decide.exploration.results import Exploration, Tried
from dippm.decide.exploration.space import Space
from dippm.decide.exploration.study import Chosen, Study, key_of
from dippm.decide.pareto import pareto_front
from dippm.errors import ConditionsError
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S, Limits

# A surrogate answers for many designs; which of them are worth asking the default predictor.
#
# A surrogate imitates another predictor, so what it says best is an order. The answers that a
# search returns are never its own.


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


DEFAULT_TRIALS = 200
ROUND = 16
"""Designs that are asked for before the first of them is answered. Always as many, so that a search
with the same seed tries the same designs however many workers there are; on a cluster more."""
ROUND_PER_WORKER = 4
REPEATED = 320
"""Proposals in a row that were all tried before, after which a sampler counts as exhausted."""


def explore(
    space: Space,
    objectives: str | Objective | Iterable[str | Objective] | Mapping[str, str] = "latency_ms",
    constraints: Mapping[str, Any] | None = None,
    *,
    trials: int | None = None,
    sampler: Any = "nsga2",
    seed: int = 0,
    storage: Any = None,
    name: str = "dippm",
    workers: int | None = None,
    cluster: str | None = None,
    prune: bool = True,
    checkpoint: str | Path | None = None,
    trust: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
    take_over: bool = False,
    surrogate: str | Path | None = None,
    confirm: int = CONFIRMED,
) -> Exploration:
    """Search a design space.

    What cannot be built, converted or predicted is a row with its reason, and the search goes on.
    With a storage everything is kept as it comes: the same call goes on where another one ended,
    however that was, and gives the answer at once if nothing is left to try.

    Args:
        space: what is searched.
        objectives: one or several: names of `QUANTITIES` ("latency_ms", "energy_j", "memory_mb",
            "throughput", ...), an `Objective` with a function of your own (an accuracy), or a
            mapping from names to "min" or "max".
        constraints: limits by name: a number is the most that is allowed, a pair (least, most), and
            for the memory the name of a MIG slice. The memory is held against its 99 % bound.
            Beside these, every design has to fit its place.
        trials: different designs to try, those of the storage included; None is 200, or the whole
            space if it has no more. Fewer are tried if the sampler proposes nothing new.
        sampler: "nsga2", "tpe", "random", "grid", or a sampler of `optuna.samplers`. A space that
            has no more designs than trials is tried whole.
        seed: of the sampler; the same search with the same seed tries the same designs.
        storage: "sqlite:///search.db", "postgresql+psycopg://...", or what Optuna takes; None keeps
            nothing.
        name: of the study in the storage.
        workers: processes; None is one for each processor, 0 is none but this one.
        cluster: address of a Ray cluster, "auto" for the one that runs here, "local" for a new one;
            None is this machine without Ray.
        prune: spare functions of your own the designs that already miss a constraint.
        checkpoint: see `dippm.predict`.
        trust: see `dippm.predict`.
        timeout_s: of each conversion.
        memory_limit_mb: of each conversion.
        take_over: go on with a study that was searched on another machine.
        surrogate: checkpoint that screens: it answers for all trials, and the best of them are
            asked of `checkpoint`, whose answers are what is returned. In a storage the screening
            has a study of its own.
        confirm: designs that are asked of `checkpoint` after a screening.

    Raises:
        ExploreError: if objectives, constraints or arguments are wrong; among these
            ContradictionError, if nothing can meet the constraints.
        UnknownNameError: if an objective, sampler or checkpoint is not known.
        NoFeasibleDesignError: if nothing that was tried meets the constraints; it has what was.
        StudyInUseError: if another process searches the study.
        WorkersLostError: if one process after the other ends.
        ExploreNotInstalledError: if Optuna or Ray is missing.
    """
    goals = objectives_of(objectives)
    limits = Limits(timeout_s, memory_limit_mb)
    total = _trials(trials, space)
    question = Question(
        space,
        goals,
        constraints_of(constraints, space, goals),
        _predictor(checkpoint, space),
        prune,
        trust,
        limits.timeout_s,
        limits.memory_limit_mb,
    )
    asked = question
    if surrogate is not None:
        asked = replace(question, predictor=_predictor(surrogate, space))
        refuse_what_it_cannot_screen(asked, confirm)
        name = f"{name}, screened by {asked.predictor.checkpoint.name}"
    whole = space.size is not None and total >= space.size
    study = Study(
        asked,
        storage=storage,
        name=name,
        sampler="grid" if whole else sampler,
        trials=total,
        seed=seed,
        take_over=take_over,
    )
    try:
        known = {key_of(chosen): outcome for _, chosen, outcome in study.tried()}
        left = total - len(study.tried())
        if left > 0:
            with _crew(asked, workers, cluster) as crew:
                _search(study, crew, known, left, total)
        entries = study.tried()
    finally:
        study.release()
    found = Exploration(asked, tuple(Tried(n, space.design(c), o) for n, c, o in entries), name)
    if surrogate is not None:
        chosen = {number: labels for number, labels, _ in entries}
        found = _confirmed(
            found, question, chosen, confirm, lambda: _crew(question, workers, cluster)
        )
    if not found.feasible:
        raise _nothing(found)
    return found


def _confirmed(
    screened: Exploration,
    question: Question,
    chosen: Mapping[int, Chosen],
    most: int,
    crew_of: Callable[[], AbstractContextManager[Crew]],
) -> Exploration:
    """Return what the question's own predictor says of the best that were screened."""
    space = question.space
    best = {tried.number: chosen[tried.number] for tried in most_promising(screened, most)}
    outcomes: dict[int, Outcome] = {}
    with crew_of() as crew:
        for answered in crew.answer(_tasks(space, best)):
            outcomes |= answered
            tell(f"design {len(outcomes):,} of {len(best):,} to confirm")
    tried = tuple(Tried(n, space.design(best[n]), outcomes[n]) for n in best)
    return Exploration(question, tried, screened.name, screening_note(screened, question, tried))


def _search(
    study: Study, crew: Crew, known: dict[tuple[Any, ...], Outcome], left: int, total: int
) -> None:
    """Ask, answer and tell in rounds until enough is tried; each answer is kept as it comes.

    What a sampler proposes again is told again, and does not count.
    """
    many = crew.engine.workers * ROUND_PER_WORKER if crew.engine.workers > ROUND else 0
    repeated = 0
    while left > 0 and repeated < REPEATED and (asked := study.ask(min(max(ROUND, many), left))):
        alike: dict[tuple[Any, ...], list[int]] = {}
        for number, chosen in asked.items():
            alike.setdefault(key_of(chosen), []).append(number)
        for key in [key for key in alike if key in known]:
            for number in alike.pop(key):
                study.tell(number, known[key])
        fresh = {numbers[0]: asked[numbers[0]] for numbers in alike.values()}
        repeated = 0 if fresh else repeated + len(asked)
        for answered in crew.answer(_tasks(study.space, fresh)):
            for first, outcome in answered.items():
                key = key_of(asked[first])
                known[key] = outcome
                for number in alike[key]:
                    study.tell(number, outcome)
            left -= len(answered)
            tell(f"design {total - left:,} of {total:,}")


def _tasks(space: Space, chosen: Mapping[int, Chosen]) -> dict[tuple[Any, ...], Task]:
    """Return the designs in tasks of equal graphs."""
    tasks: dict[tuple[Any, ...], dict[int, Chosen]] = {}
    for number, labels in chosen.items():
        tasks.setdefault(space.design(labels).built, {})[number] = labels
    return {built: Task(designs) for built, designs in tasks.items()}


@contextmanager
def _crew(question: Question, workers: int | None, cluster: str | None) -> Iterator[Crew]:
    engine: Engine
    if cluster is not None:
        from dippm.decide.exploration.cluster import RayEngine

        ray = RayEngine(question, cluster, workers)
        crew = Crew(ray)
        try:
            yield crew
        finally:
            crew.close()
            ray.leave()
        return
    count = _processors() if workers is None else workers
    engine = LocalEngine(question, count) if count and can_fork() else HereEngine(question)
    crew = Crew(engine)
    try:
        yield crew
    finally:
        crew.close()


def _processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _predictor(checkpoint: str | Path | None, space: Space) -> Any:
    devices = {place.device.name: place.device for place in space.places.values()}
    loaded = load(checkpoint, device=next(iter(devices.values())))
    for device in devices.values():
        loaded.checkpoint_for(device)  # in memory before workers are made of this process
    return loaded


def _trials(trials: int | None, space: Space) -> int:
    if trials is None:
        return min(DEFAULT_TRIALS, space.size or DEFAULT_TRIALS)
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise ConditionsError(f"trials is {trials!r}", "Give a whole number, at least 1.")
    return trials


def _nothing(found: Exploration) -> NoFeasibleDesignError:
    """Return the error for a search that found nothing, with what to do next."""
    tried = f"none of {len(found.tried):,} designs"
    if not found.predicted:
        reasons = found.reasons()
        most, count = max(reasons.items(), key=lambda item: item[1])
        return NoFeasibleDesignError(
            f"{tried} could be predicted; {count:,} of them: {most}",
            "`error.exploration`, or csv=FILE of the command, has the reason of each. Mend the "
            "function or the space; another search needs another name=... .",
            found,
        )
    nearest = found.nearest
    assert nearest is not None
    more = "Try more with the same storage and a larger trials=..., or loosen"
    if len(found.tried) == found.question.space.size:
        more = "That was the whole space: widen it, or loosen"
    return NoFeasibleDesignError(
        f"{tried} meets the constraints; the nearest is {nearest.design}: {nearest.outcome.reason}",
        f"{more} the constraints under another name=... . `error.exploration`, or csv=FILE and "
        "html=FILE of the command, have all of them.",
        found,
    )
