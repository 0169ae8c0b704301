"""Optuna studies: a `Study` proposes designs, and keeps their outcomes in a storage.

A trial of Optuna is one design. Its user attribute "outcome" contains everything known about it, so
that the storage alone suffices to rebuild the answer. A trial that was running when its process
ended is marked, and its design is tried again. The other sections record the process that searches
a study, and open the storage.
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

from dippm.decide.exploration.design import ARCHITECTURE, Axis, Choices, Floats, Label, values_of
from dippm.decide.exploration.errors import (
    ExploreError,
    ExploreNotInstalledError,
    StudyInUseError,
    StudyMismatchError,
)
from dippm.decide.exploration.evaluation import DesignOutcome, SearchQuestion
from dippm.decide.exploration.space import Space
from dippm.errors import DippmError, UnknownNameError

SAMPLERS = ("nsga2", "tpe", "random", "grid")
OUTCOME, LOST, ASKED, DRIVER = "outcome", "lost", "dippm", "dippm_driver"
"""Names of user attributes: the first two of trials, the others of studies."""
VIOLATION = "violation"
POPULATION = (8, 50)
"""Bounds of the population of NSGA-II, which is a tenth of the trials, for ten generations."""
Chosen = Mapping[str, Label]
"""Label of each axis, by name of the axis."""


class Study:
    """The persistent state of a search.

    Args:
        question: question of the search.
        storage: storage of Optuna: an address such as "sqlite:///search.db", or an object; None for
            a study in memory.
        name: name of the study in the storage.
        sampler: one of `SAMPLERS`, or a sampler of Optuna.
        trials: total number of designs to try.
        seed: seed of the sampler.
        take_over: whether to assume that a search of this study on another machine has ended.

    Attributes:
        space: design space.

    Raises:
        ExploreNotInstalledError: if Optuna is not installed.
        StudyMismatchError: if the study was created for another question.
        StudyInUseError: if another process searches the study.
        ExploreError: if the storage cannot be opened, or a sampler does not suit the space.
    """

    def __init__(
        self,
        question: SearchQuestion,
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
        with self._silent(), _reading_storage():
            self._study = self._opened(storage, name)
            self._check()
            self._claim(take_over=take_over)
            self._requeue_unfinished(again=not is_grid)
        with self._silent():
            # A second search of a study must not begin with the random numbers of the first.
            seed += len(self._study.get_trials(deepcopy=False))
            self._study.sampler = self._sampler(sampler, trials, seed)
        self._left = self._unvisited() if is_grid else None

    @property
    def name(self) -> str:
        """Name of the study."""
        return str(self._study.study_name)

    def tried(self) -> list[tuple[int, Chosen, DesignOutcome]]:
        """Return number, chosen labels and outcome of every design that was tried, each once.

        Raises:
            ExploreError: if the content of the storage is damaged.
        """
        found: dict[tuple[Any, ...], tuple[int, Chosen, DesignOutcome]] = {}
        with _reading_storage():
            for trial in self._study.get_trials(deepcopy=False):
                if OUTCOME in trial.user_attrs and trial.state.is_finished():
                    chosen = dict(trial.params)
                    outcome = DesignOutcome.from_dict(trial.user_attrs[OUTCOME])
                    self.space.design(chosen)  # raises if the space lacks it
                    found.setdefault(key_of(chosen), (trial.number, chosen, outcome))
        return list(found.values())

    def ask(self, most: int) -> dict[int, Chosen]:
        """Return designs to try, by number; fewer than requested if a grid is exhausted."""
        found: dict[int, Chosen] = {}
        with self._silent():
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

    def tell(self, number: int, outcome: DesignOutcome) -> None:
        """Store the outcome of a design."""
        state = self._optuna.trial.TrialState
        trial = self._asked.pop(number)
        with self._silent():
            trial.set_user_attr(OUTCOME, outcome.to_dict())
            if outcome.state in ("ok", "infeasible"):
                trial.set_constraint(VIOLATION, sum(outcome.violations.values()))
                self._study.tell(trial, [outcome.values[o.name] for o in self._question.objectives])
            else:
                ended = state.PRUNED if outcome.state == "pruned" else state.FAIL
                self._study.tell(trial, state=ended)

    def release(self) -> None:
        """Record that this process no longer searches the study."""
        with contextlib.suppress(Exception):  # the storage may be what failed
            self._study.set_user_attr(DRIVER, None)

    def _opened(self, storage: Any, name: str) -> Any:
        directions = ["minimize" if o.sign > 0 else "maximize" for o in self._question.objectives]
        study = open_study(self._optuna, storage, name, directions)
        kept = [self._optuna.study.StudyDirection[d.upper()] for d in directions]
        if study.directions != kept:
            raise self._mismatch("objectives")
        return study

    def _check(self) -> None:
        """Check that a study was created for the same question, which a new study records.

        Raises:
            StudyMismatchError: if it was created for another question, or by another program.
        """
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
            "Use the same arguments to resume it, or give another name=... for a new study.",
        )

    def _claim(self, *, take_over: bool) -> None:
        """Record this process as the one that searches the study.

        Raises:
            StudyInUseError: if another process may still search it.
        """
        kept = self._study.user_attrs.get(DRIVER)
        driver = SearchProcess(**kept) if kept else None
        here = SearchProcess.current()
        if driver and driver != here and not (driver.is_gone or take_over):
            known = driver.is_gone is not None
            raise StudyInUseError(
                f"process {driver.pid} on {driver.host} searches this study",
                "Wait for it, or end it: what it has tried is kept."
                if known
                else "If it has ended, call again with take_over=True: what it has tried is kept.",
            )
        self._study.set_user_attr(DRIVER, asdict(here))

    def _requeue_unfinished(self, *, again: bool) -> None:
        """Mark the designs that a process left unfinished, so that they are tried again."""
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
            "grid": lambda: samplers.RandomSampler(seed=seed),  # designs are enqueued, not sampled
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
        return (chosen for chosen in every_design(self.space) if key_of(chosen) not in seen)

    @contextlib.contextmanager
    def _silent(self) -> Iterator[None]:
        """Silence Optuna's logger and warnings, which are about its own interface."""
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
def _reading_storage() -> Iterator[None]:
    """Convert errors from reading the storage.

    Raises:
        ExploreError: if the block raises anything but a `DippmError` or an interruption.
    """
    try:
        yield
    except (DippmError, KeyboardInterrupt):
        raise
    except Exception as error:  # from Optuna, the database, or parsing
        words = (str(error).splitlines() or [""])[0][:300]
        raise ExploreError(
            f"the study in this storage cannot be read: {type(error).__name__}: {words}",
            "Look whether its database is reached and whole (`sqlite3 FILE .recover` may save "
            "parts), or begin anew with another name=... or storage=... .",
        ) from error


def every_design(space: Space) -> Iterator[Chosen]:
    """Yield every design of a space, as labels of its axes.

    Raises:
        ExploreError: if an axis is continuous.
    """
    for name in space.architectures:
        axes = space.axes_of(name)
        first = {ARCHITECTURE: name} if ARCHITECTURE in space.axes else {}
        lists = [values_of(axis) for axis in axes.values()]
        for values in product(*lists):
            yield {**first, **dict(zip(axes, values, strict=True))}


def key_of(chosen: Chosen) -> tuple[Any, ...]:
    """Return a hashable key of a design, equal for equal labels."""
    return tuple(sorted(chosen.items()))


def optuna_module() -> Any:
    """Return Optuna.

    Raises:
        ExploreNotInstalledError: if it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about progress bars, which are not used
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


# The process that searches a study, which is recorded so that a second one is refused.


@dataclass(frozen=True, slots=True)
class SearchProcess:
    """The process that searches a study.

    Attributes:
        host: name of the machine.
        pid: id of the process on that machine.
        began: start time in the kernel's ticks, which distinguishes it from a later process with
            the same id; 0 if it is not known.
    """

    host: str
    pid: int
    began: int

    @classmethod
    def current(cls) -> SearchProcess:
        """Return this process."""
        return cls(socket.gethostname(), os.getpid(), _start_ticks(os.getpid()))

    @property
    def is_gone(self) -> bool | None:
        """Whether the process has ended; None if it is on another machine."""
        if self.host != socket.gethostname():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return _start_ticks(self.pid) != self.began


def _start_ticks(pid: int) -> int:
    """Return the start time of a process in the kernel's ticks; 0 where it is not known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = status.rpartition(")")[2].split()  # the name before may hold anything
        return -1 if fields[0] == "Z" else int(fields[19])
    return 0


# Opening or creating a study in a storage of Optuna.

STORAGES = (
    'Give an address, for instance storage="sqlite:///search.db" or '
    '"postgresql+psycopg://user@host/database".'
)
ATTEMPTS = 5
"""Number of attempts to create the tables of a database while another search creates them too."""


def open_study(optuna: Any, storage: Any, name: str, directions: list[str]) -> Any:
    """Return a study of the storage, created if it does not exist.

    Args:
        optuna: module of Optuna.
        storage: address or storage object; None for a study in memory.
        name: name of the study.
        directions: "minimize" or "maximize" for each objective of a new study.

    Raises:
        ExploreNotInstalledError: if the driver of the database is not installed.
        ExploreError: if the storage cannot be opened.
    """
    if isinstance(storage, str) and "://" not in storage:
        raise ExploreError(f"{storage!r} is not the address of a storage", STORAGES)
    try:
        if isinstance(storage, str):
            storage = _tables(optuna, storage)
        return optuna.create_study(
            study_name=name, storage=storage, directions=directions, load_if_exists=True
        )
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or error.name or "a driver"
        raise ExploreNotInstalledError(
            f"this storage needs {missing}, which is not installed",
            'Install the driver of the database; PostgreSQL\'s: pip install "dippm[postgresql]".',
        ) from error
    except Exception as error:
        words = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise ExploreError(f"the storage cannot be opened: {words}", STORAGES) from error


def _tables(optuna: Any, address: str) -> Any:
    """Return the storage of an address, with its tables.

    Optuna checks for a table and then creates it: of two searches that start together in an empty
    database, one fails because the other was faster, and succeeds when it tries again.
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            storage = optuna.storages.RDBStorage(address)
            break
        except Exception as error:
            if not (left and _met_another(error)):
                raise
    if address.startswith("sqlite"):
        _write_ahead(storage.engine)
    return storage


def _met_another(error: Exception) -> bool:
    """Return whether a table or a row could not be created because another process just did so."""
    from sqlalchemy import exc

    is_internal = type(error).__name__ == "StorageInternalError"  # from the commit of a row
    cause = error.__cause__ if is_internal and error.__cause__ else error
    return isinstance(cause, exc.IntegrityError) or (
        isinstance(cause, exc.DatabaseError) and "already exists" in str(cause)
    )


def _write_ahead(engine: Any) -> None:
    """Enable SQLite's write-ahead log: a design is a dozen transactions that wait for the disk.

    Stored outcomes survive a kill of this process; a power cut may lose the last designs. The mode
    is stored in the file, and SQLite does not wait to change it: of searches that start together,
    one changes it, and the others continue without.
    """
    from sqlite3 import OperationalError

    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def _(connection: Any, _: Any) -> None:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except OperationalError as error:
            if "locked" not in str(error):
                raise
        connection.execute("PRAGMA synchronous = NORMAL")

    engine.dispose()  # closes connections from before the setting
