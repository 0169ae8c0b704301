"""`explore`: searches a design space for its Pareto front."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dippm.api import load
from dippm.base.progress import tell
from dippm.decide.exploration.engines import HereEngine, LocalEngine, RayEngine, can_fork
from dippm.decide.exploration.errors import ExploreError, NoFeasibleDesignError
from dippm.decide.exploration.evaluation import DesignOutcome, SearchQuestion, Task
from dippm.decide.exploration.objectives import Objective, constraints_of, objectives_of
from dippm.decide.exploration.results import EvaluatedDesign, Exploration
from dippm.decide.exploration.space import Space
from dippm.decide.exploration.study import Chosen, Study, key_of
from dippm.decide.exploration.worker_pool import Engine, WorkerPool
from dippm.decide.pareto import pareto_front
from dippm.errors import ConditionsError
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S, Limits

# Screening: a surrogate predicts many designs, and the default predictor confirms the best of them.
#
# A surrogate imitates another predictor, so its ranking is worth more than its values; the answers
# that a search returns are never those of the surrogate.


CONFIRMED = 32
"""Default number of designs that the default predictor confirms."""


def most_promising(screened: Exploration, most: int) -> list[EvaluatedDesign]:
    """Return the best designs, best first: one Pareto front of feasible designs after the other.

    If there are too few, those follow that miss the constraints least: they may meet them within
    the surrogate's error.

    Args:
        screened: predictions of the surrogate.
        most: number of designs.
    """
    found: list[EvaluatedDesign] = []
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


def refuse_what_it_cannot_screen(question: SearchQuestion, most: int) -> None:
    """Refuse a space that the question's predictor was not trained for, before anything runs.

    Args:
        question: question with the surrogate as its predictor.
        most: number of designs to confirm.

    Raises:
        ExploreError: names the condition and an alternative; or if `most` is not a positive number.
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


def screening_note(
    screened: Exploration, question: SearchQuestion, tried: Sequence[EvaluatedDesign]
) -> str:
    """Return a note on how many designs which checkpoint screened, and which one confirmed."""
    surrogate = screened.question.predictor.checkpoint
    teacher = question.predictor.checkpoint
    return (
        f"{len(screened.tried):,} designs were screened by {surrogate.name} {surrogate.version}; "
        f"the results are the answers of {teacher.name} {teacher.version} for the "
        f"{len(tried):,} most promising"
    )


DEFAULT_TRIALS = 200
ROUND = 16
"""Designs that the sampler proposes at once. The number is independent of the number of workers, so
that a search with the same seed tries the same designs; on a cluster it is larger."""
ROUND_PER_WORKER = 4
REPEATED = 320
"""Consecutive repeated proposals after which a sampler counts as exhausted."""


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

    A design that cannot be built, converted or predicted is a row with its reason, and the search
    goes on. With a storage every outcome is stored at once: the same call continues where an
    earlier one ended or was killed, and answers at once if nothing is left to try.

    Args:
        space: design space.
        objectives: one or several: names of `QUANTITIES` ("latency_ms", "energy_j", "memory_mb",
            "throughput", ...), an `Objective` with a function of your own (an accuracy), or a
            mapping from names to "min" or "max".
        constraints: limits by name: a number is the largest allowed value, a pair the smallest and
            the largest; for memory also the name of a MIG slice. Memory is compared by its 99 %
            bound. In addition, every design has to fit its place.
        trials: number of distinct designs to try, including those in the storage; None takes 200,
            or the whole space if it is smaller. Fewer are tried if the sampler is exhausted.
        sampler: "nsga2", "tpe", "random", "grid", or a sampler of `optuna.samplers`. A space that
            has no more designs than trials is enumerated.
        seed: seed of the sampler; the same search with the same seed tries the same designs.
        storage: "sqlite:///search.db", "postgresql+psycopg://...", or any storage of Optuna; None
            stores nothing.
        name: name of the study in the storage.
        workers: number of processes; None takes one per processor, 0 only this one.
        cluster: address of a Ray cluster, "auto" for the one that runs here, "local" for a new one;
            None runs on this machine without Ray.
        prune: do not call functions of your own for designs that miss a constraint.
        checkpoint: see `dippm.predict`.
        trust: see `dippm.predict`.
        timeout_s: time limit of each conversion in s.
        memory_limit_mb: memory limit of each conversion in MiB.
        take_over: continue a study that was searched on another machine.
        surrogate: checkpoint for screening: it predicts all trials, and `checkpoint` then predicts
            the best of them, which are returned. In a storage the screening has a study of its own.
        confirm: number of designs that `checkpoint` predicts after a screening.

    Raises:
        ExploreError: if objectives, constraints or arguments are not valid; ContradictionError, a
            subclass, if no design can meet the constraints.
        UnknownNameError: if an objective, sampler or checkpoint is not known.
        NoFeasibleDesignError: if no design meets the constraints; it holds the exploration.
        StudyInUseError: if another process searches the study.
        WorkersLostError: if too many worker processes in a row end.
        ExploreNotInstalledError: if Optuna or Ray is missing.
    """
    goals = objectives_of(objectives)
    limits = Limits(timeout_s, memory_limit_mb)
    total = _trials(trials, space)
    question = SearchQuestion(
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
            with _worker_pool(asked, workers, cluster) as pool:
                _search(study, pool, known, left, total)
        entries = study.tried()
    finally:
        study.release()
    found = Exploration(
        asked, tuple(EvaluatedDesign(n, space.design(c), o) for n, c, o in entries), name
    )
    if surrogate is not None:
        chosen = {number: labels for number, labels, _ in entries}
        found = _confirm(
            found, question, chosen, confirm, lambda: _worker_pool(question, workers, cluster)
        )
    if not found.feasible:
        raise _nothing(found)
    return found


def _confirm(
    screened: Exploration,
    question: SearchQuestion,
    chosen: Mapping[int, Chosen],
    most: int,
    pool_of: Callable[[], AbstractContextManager[WorkerPool]],
) -> Exploration:
    """Return the predictions of the question's own predictor for the best screened designs."""
    space = question.space
    best = {tried.number: chosen[tried.number] for tried in most_promising(screened, most)}
    outcomes: dict[int, DesignOutcome] = {}
    with pool_of() as pool:
        for answered in pool.answer(_tasks(space, best)):
            outcomes |= answered
            tell(f"design {len(outcomes):,} of {len(best):,} to confirm")
    tried = tuple(EvaluatedDesign(n, space.design(best[n]), outcomes[n]) for n in best)
    return Exploration(question, tried, screened.name, screening_note(screened, question, tried))


def _search(
    study: Study,
    pool: WorkerPool,
    known: dict[tuple[Any, ...], DesignOutcome],
    left: int,
    total: int,
) -> None:
    """Propose and evaluate designs in rounds until enough are tried; store each outcome at once.

    A design that the sampler proposes again gets its known outcome, and does not count.
    """
    many = pool.engine.workers * ROUND_PER_WORKER if pool.engine.workers > ROUND else 0
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
        for answered in pool.answer(_tasks(study.space, fresh)):
            for first, outcome in answered.items():
                key = key_of(asked[first])
                known[key] = outcome
                for number in alike[key]:
                    study.tell(number, outcome)
            left -= len(answered)
            tell(f"design {total - left:,} of {total:,}")


def _tasks(space: Space, chosen: Mapping[int, Chosen]) -> dict[tuple[Any, ...], Task]:
    """Group designs with equal graphs into tasks."""
    tasks: dict[tuple[Any, ...], dict[int, Chosen]] = {}
    for number, labels in chosen.items():
        tasks.setdefault(space.design(labels).built, {})[number] = labels
    return {built: Task(designs) for built, designs in tasks.items()}


@contextmanager
def _worker_pool(
    question: SearchQuestion, workers: int | None, cluster: str | None
) -> Iterator[WorkerPool]:
    engine: Engine
    if cluster is not None:
        ray = RayEngine(question, cluster, workers)
        pool = WorkerPool(ray)
        try:
            yield pool
        finally:
            pool.close()
            ray.leave()
        return
    count = _processors() if workers is None else workers
    engine = LocalEngine(question, count) if count and can_fork() else HereEngine(question)
    pool = WorkerPool(engine)
    try:
        yield pool
    finally:
        pool.close()


def _processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _predictor(checkpoint: str | Path | None, space: Space) -> Any:
    devices = {place.device.name: place.device for place in space.places.values()}
    loaded = load(checkpoint, device=next(iter(devices.values())))
    for device in devices.values():
        loaded.checkpoint_for(device)  # load before workers are forked from this process
    return loaded


def _trials(trials: int | None, space: Space) -> int:
    if trials is None:
        return min(DEFAULT_TRIALS, space.size or DEFAULT_TRIALS)
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise ConditionsError(f"trials is {trials!r}", "Give a whole number, at least 1.")
    return trials


def _nothing(found: Exploration) -> NoFeasibleDesignError:
    """Return the error of a search without a feasible design, with the next step."""
    tried = f"none of {len(found.tried):,} designs"
    if not found.predicted:
        reasons = found.reasons()
        most, count = max(reasons.items(), key=lambda item: item[1])
        return NoFeasibleDesignError(
            f"{tried} could be predicted; {count:,} of them: {most}",
            "`error.exploration`, or csv=FILE of the command, has the reason of each. Correct the "
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
