"""`Study`: an Optuna study in DIPPM's words: what to try next, what was tried, where it is kept.

A trial of Optuna is one design. Its user attribute "outcome" has everything that is known of it, so
that the storage alone gives the answer back. A trial that was running when its process ended is
marked, and its design is tried again.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dippm.decide.exploration.axes import Axis, Choices, Floats, Label, values_of
from dippm.decide.exploration.design import ARCHITECTURE
from dippm.decide.exploration.errors import (
    ExploreError,
    ExploreNotInstalledError,
    StudyInUseError,
    StudyMismatchError,
)
from dippm.decide.exploration.question import Outcome, Question
from dippm.decide.exploration.space import Space
from dippm.decide.exploration.storage import opened
from dippm.errors import DippmError, UnknownNameError

SAMPLERS = ("nsga2", "tpe", "random", "grid")
OUTCOME, LOST, ASKED, DRIVER = "outcome", "lost", "dippm", "dippm_driver"
VIOLATION = "violation"
POPULATION = (8, 50)
"""Least and greatest of NSGA-II; between them a tenth of the trials, for ten generations."""
Chosen = Mapping[str, Label]


class Study:
    """The memory of a search.

    Args:
        question: what is searched.
        storage: of Optuna: an address such as "sqlite:///search.db", or a storage object; None
            keeps nothing.
        name: of the study there.
        sampler: one of `SAMPLERS`, or a sampler of Optuna.
        trials: that are meant to be tried in all.
        seed: of the sampler.
        take_over: whether a search of this study on another machine is taken to be over.

    Attributes:
        space: what is searched.

    Raises:
        ExploreNotInstalledError: if Optuna is not installed.
        StudyMismatchError: if the study was made for another question.
        StudyInUseError: if another process searches it.
        ExploreError: if the storage cannot be opened, or a sampler does not suit the space.
    """

    def __init__(
        self,
        question: Question,
        *,
        storage: Any,
        name: str,
        sampler: Any,
        trials: int,
        seed: int,
        take_over: bool,
    ) -> None:
        self._optuna = optuna_module()
        self._question, self.space = question, question.space
        self._asked: dict[int, Any] = {}
        is_grid = sampler == "grid"
        with self._quiet(), _kept_things_read():
            self._study = self._opened(storage, name)
            self._check()
            self._drive(take_over=take_over)
            self._revive(again=not is_grid)
        with self._quiet():
            # A second search of a study must not begin with the random numbers of the first.
            seed += len(self._study.get_trials(deepcopy=False))
            self._study.sampler = self._sampler(sampler, trials, seed)
        self._left = self._unvisited() if is_grid else None

    @property
    def name(self) -> str:
        """What the study is called."""
        return str(self._study.study_name)

    def tried(self) -> list[tuple[int, Chosen, Outcome]]:
        """Return what was tried: number, what was chosen, what became of it; each design once.

        Raises:
            ExploreError: if what the storage keeps is damaged.
        """
        found: dict[tuple[Any, ...], tuple[int, Chosen, Outcome]] = {}
        with _kept_things_read():
            for trial in self._study.get_trials(deepcopy=False):
                if OUTCOME in trial.user_attrs and trial.state.is_finished():
                    chosen = dict(trial.params)
                    outcome = Outcome.from_dict(trial.user_attrs[OUTCOME])
                    self.space.design(chosen)  # raises if it is none of the space
                    found.setdefault(key_of(chosen), (trial.number, chosen, outcome))
        return list(found.values())

    def ask(self, most: int) -> dict[int, Chosen]:
        """Return designs to try, by number; fewer than asked for if a grid has no more."""
        found: dict[int, Chosen] = {}
        with self._quiet():
            while len(found) < most:
                if self._left is not None:
                    chosen = next(self._left, None)
                    if chosen is None:
                        break
                    self._study.enqueue_trial(dict(chosen))
                trial = self._study.ask()
                found[trial.number] = self._suggested(trial)
                self._asked[trial.number] = trial
        return found

    def tell(self, number: int, outcome: Outcome) -> None:
        """Keep what became of a design."""
        state = self._optuna.trial.TrialState
        trial = self._asked.pop(number)
        with self._quiet():
            trial.set_user_attr(OUTCOME, outcome.to_dict())
            if outcome.state in ("ok", "infeasible"):
                trial.set_constraint(VIOLATION, sum(outcome.violations.values()))
                self._study.tell(trial, [outcome.values[o.name] for o in self._question.objectives])
            else:
                ended = state.PRUNED if outcome.state == "pruned" else state.FAIL
                self._study.tell(trial, state=ended)

    def release(self) -> None:
        """Say that this process no longer searches the study."""
        with contextlib.suppress(Exception):  # the storage may be what failed
            self._study.set_user_attr(DRIVER, None)

    def _opened(self, storage: Any, name: str) -> Any:
        directions = ["minimize" if o.sign > 0 else "maximize" for o in self._question.objectives]
        study = opened(self._optuna, storage, name, directions)
        kept = [self._optuna.study.StudyDirection[d.upper()] for d in directions]
        if study.directions != kept:
            raise self._mismatch("objectives")
        return study

    def _check(self) -> None:
        """Refuse a study that was made for another question; sign a new one."""
        asked = json.loads(json.dumps(self._question.describe()))
        kept = self._study.user_attrs.get(ASKED)
        if kept is None:
            if self._study.get_trials(deepcopy=False):
                raise self._mismatch("everything: DIPPM did not make it")
            self._study.set_user_attr(ASKED, asked)
            return
        other = [part for part in asked if asked[part] != kept.get(part)]
        if other:
            raise self._mismatch(" and ".join(other))

    def _mismatch(self, what: str) -> StudyMismatchError:
        return StudyMismatchError(
            f"the study in this storage differs in {what}",
            "Ask the same as before to go on with it, or give another name=... for a new one.",
        )

    def _drive(self, *, take_over: bool) -> None:
        kept = self._study.user_attrs.get(DRIVER)
        driver = Driver(**kept) if kept else None
        here = Driver.here()
        if driver and driver != here and not (driver.is_gone or take_over):
            known = driver.is_gone is not None
            raise StudyInUseError(
                f"process {driver.pid} on {driver.host} searches this study",
                "Wait for it, or end it: what it has tried is kept."
                if known
                else "If it has ended, call again with take_over=True: what it has tried is kept.",
            )
        self._study.set_user_attr(DRIVER, asdict(here))

    def _revive(self, *, again: bool) -> None:
        """Mark the designs that a process had not finished when it ended, and try them again."""
        state = self._optuna.trial.TrialState
        for trial in self._study.get_trials(deepcopy=False, states=(state.RUNNING,)):
            running = self._optuna.trial.Trial(self._study, trial._trial_id)
            running.set_user_attr(LOST, True)
            self._study.tell(trial.number, state=state.FAIL)
            if again and self._is_whole(trial.params):
                self._study.enqueue_trial(trial.params)

    def _is_whole(self, chosen: Chosen) -> bool:
        try:
            self.space.design(chosen)
        except KeyError:
            return False
        return True

    def _sampler(self, sampler: Any, trials: int, seed: int) -> Any:
        samplers = self._optuna.samplers
        if isinstance(sampler, samplers.BaseSampler):
            return sampler
        least, most = POPULATION
        makers = {
            "nsga2": lambda: samplers.NSGAIISampler(
                seed=seed, population_size=min(max(trials // 10, least), most)
            ),
            "tpe": lambda: samplers.TPESampler(seed=seed),
            "random": lambda: samplers.RandomSampler(seed=seed),
            "grid": lambda: samplers.RandomSampler(seed=seed),  # it is told every design
        }
        if sampler not in makers:
            raise UnknownNameError.of(
                "sampler",
                str(sampler),
                SAMPLERS,
                f"Known: {', '.join(SAMPLERS)}, or a sampler of optuna.samplers.",
            )
        return makers[sampler]()

    def _suggested(self, trial: Any) -> Chosen:
        space, chosen = self.space, {}
        if ARCHITECTURE in space.axes:
            chosen[ARCHITECTURE] = _suggest(trial, ARCHITECTURE, space.axes[ARCHITECTURE])
        name = str(chosen.get(ARCHITECTURE, next(iter(space.architectures))))
        for key, axis in space.axes_of(name).items():
            chosen[key] = _suggest(trial, key, axis)
        return chosen

    def _unvisited(self) -> Iterator[Chosen]:
        """Yield every design of the space that was not tried."""
        seen = {key_of(chosen) for _, chosen, _ in self.tried()}
        return (chosen for chosen in every(self.space) if key_of(chosen) not in seen)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Keep Optuna from talking: what it says is about its own interface."""
        logging = self._optuna.logging
        before = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.set_verbosity(before)


@contextlib.contextmanager
def _kept_things_read() -> Iterator[None]:
    """Name the storage where what it keeps has another form than was written."""
    try:
        yield
    except (DippmError, KeyboardInterrupt):
        raise
    except Exception as error:  # of Optuna, of the database, of our own reading
        words = (str(error).splitlines() or [""])[0][:300]
        raise ExploreError(
            f"the study in this storage cannot be read: {type(error).__name__}: {words}",
            "Look whether its database is reached and whole (`sqlite3 FILE .recover` may save "
            "parts), or begin anew with another name=... or storage=... .",
        ) from error


def every(space: Space) -> Iterator[Chosen]:
    """Yield every design of a space, as what is chosen for its axes.

    Raises:
        ExploreError: if an axis has no end.
    """
    for name in space.architectures:
        axes = space.axes_of(name)
        first = {ARCHITECTURE: name} if ARCHITECTURE in space.axes else {}
        lists = [values_of(axis) for axis in axes.values()]
        for values in product(*lists):
            yield {**first, **dict(zip(axes, values, strict=True))}


def key_of(chosen: Chosen) -> tuple[Any, ...]:
    """Return what is equal for equal choices."""
    return tuple(sorted(chosen.items()))


def optuna_module() -> Any:
    """Return Optuna.

    Raises:
        ExploreNotInstalledError: if it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its progress bars, which are not used
            import optuna
    except ImportError as error:
        raise ExploreNotInstalledError(
            f"a search needs {error.name}, which is not installed",
            'Install it: pip install "dippm[explore]".',
        ) from error
    return optuna


def _suggest(trial: Any, name: str, axis: Axis) -> Label:
    if isinstance(axis, Choices):
        chosen: Label = trial.suggest_categorical(name, axis.labels)
    elif isinstance(axis, Floats):
        chosen = trial.suggest_float(name, axis.low, axis.high, step=axis.step, log=axis.log)
    else:
        chosen = trial.suggest_int(name, axis.low, axis.high, step=axis.step, log=axis.log)
    return chosen


# `Driver`: the process that searches a study, so that a second one does not join unseen.


@dataclass(frozen=True, slots=True)
class Driver:
    """The process that searches a study.

    Attributes:
        host: name of the machine.
        pid: its number there.
        began: when it began, in the kernel's ticks, so that another process of its number is told
            from it; 0 where nothing says it.
    """

    host: str
    pid: int
    began: int

    @classmethod
    def here(cls) -> Driver:
        """Return this process."""
        return cls(socket.gethostname(), os.getpid(), _began(os.getpid()))

    @property
    def is_gone(self) -> bool | None:
        """Whether it has ended; None if it is on another machine."""
        if self.host != socket.gethostname():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return _began(self.pid) != self.began


def _began(pid: int) -> int:
    """Return when a process began; a number that nobody has taken over has the same."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = status.rpartition(")")[2].split()  # the name before may hold anything
        return -1 if fields[0] == "Z" else int(fields[19])
    return 0
