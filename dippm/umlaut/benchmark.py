"""`Benchmark`: one run of a pipeline, in a folder and a store; `BenchmarkSupervisor`: its calls."""

from __future__ import annotations

import atexit
import copy
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dippm.errors import RunError
from dippm.measure.readings import Absent
from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import End, Moment, Start
from dippm.runs.tracking.decorator import tracked
from dippm.runs.tracking.metrics import CallMetric
from dippm.runs.tracking.run import Run, SpanBlock
from dippm.runs.tracking.run_config import new_start
from dippm.runs.tracking.sidecar_spawn import ATTACH_VARIABLE, Sidecar, SidecarConfig, start_sidecar
from dippm.umlaut.descriptions import DESCRIPTIONS, KINDS, TYPES, LoggedNames, describe_metrics
from dippm.umlaut.metric import Metric, Sampled
from dippm.umlaut.watch import Sampling, Watch

if TYPE_CHECKING:
    from dippm.umlaut.rows import CallRow

Mode = Literal["a", "w", "r"]
STORED_S = 120.0
"""Time that `close` waits for the store; an unreachable one fails sooner."""
JOIN = "DIPPM_BENCHMARKS"
"""Folders of runs by store, for multiprocessing children, which run the script's top again."""


class Benchmark:
    """One run; created once per program, ended by `close` or with the program.

    Errors of recording never reach the workload: the logger "dippm.umlaut" warns of them.

    Args:
        db_file: file of the store of runs, or the address of one ("postgresql://...").
        description: description of the use case.
        mode: "a" adds a run; "w" too, but moves an existing store away first; "r" reads.
        name: name of the run, by default that of the script.
        checkpoint_frequency: accepted and ignored: every call is written when it ends.
        tmp_dir: parent of the run's folder, by default the spool.

    Attributes:
        uuid: uuid of the run, 32 hexadecimal digits.
        store: address of the store.
        run: writer of the run; records nothing in mode "r".

    Raises:
        ValueError: if the mode is unknown.
        FileNotFoundError: if a store to read does not exist.
    """

    def __init__(
        self,
        db_file: str | os.PathLike[str],
        description: str = "",
        mode: Mode = "a",
        name: str = "",
        checkpoint_frequency: float = 2,
        tmp_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if mode not in ("a", "w", "r"):
            raise ValueError(f"mode is {mode!r}: give a, w or r")
        self.db_file, self.description, self.mode = os.fspath(db_file), description, mode
        self.name = name or os.path.basename(sys.argv[0] if sys.argv else "") or "python"
        joined = None if mode == "r" else _parents_folder(self.db_file)
        self.store = "" if joined else _address(self.db_file, mode)
        self._owner = os.getpid() if joined is None and mode != "r" else 0
        self._lock = threading.RLock()
        self._descriptions: dict[str, Any] = {}
        self._logged = LoggedNames()
        start = self._start()
        self.uuid = joined.name if joined else start.uuid
        folder, trouble = self._folder_of(joined, start, tmp_dir)
        self.run = Run(self.uuid, folder, trouble)
        self.folder: Path | None = self.run.path
        self._watch = Watch(self.folder, samples=bool(self._owner)) if self.folder else None
        self._sidecar: Sidecar | None = None
        if self._owner and self.folder:
            self._sidecar = self._start_sidecar(self.folder, start.folder)
            _tell_children(self.db_file, self.folder)
            atexit.register(self._at_exit)

    def __enter__(self) -> Benchmark:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.close(error)

    def log(
        self, description: str, measure_type: str, value: Any, unit: str = "", method_name: str = ""
    ) -> None:
        """Log a value of the workload, like UMLAUT's trackers and metrics.

        Args:
            description: name of the value.
            measure_type: kind of row; any word.
            value: a number, or anything that JSON can hold.
            unit: unit of the value.
            method_name: function that it belongs to.
        """
        kind = KINDS.get(measure_type, "metric")
        name = self._name(description, measure_type) if kind == "metric" else description
        self.run.tell(name, kind, plain(value), unit=unit, description=method_name)

    def rows(self) -> list[CallRow]:
        """Return every metric of every call of this run, and every logged value, in order."""
        from dippm.umlaut.rows import rows_of_folder

        return rows_of_folder(self.folder) if self.folder else []

    def query(
        self, *, uuid: str = "", measure_type: str = "", description: str = ""
    ) -> list[CallRow]:
        """Return rows of the runs in the store in mode "r", else of this run.

        Args:
            uuid: uuid of a run or its prefix.
            measure_type: "time", "memory" and so on, in UMLAUT's or this package's notation.
            description: description of the rows.

        Raises:
            StoreError: if the store cannot be read.
        """
        if self.mode == "r":
            from dippm.umlaut.rows import stored_rows

            found = stored_rows(self.store, uuid)
        else:
            found = [row for row in self.rows() if row.uuid.startswith(uuid.replace("-", ""))]
        measure_type = KINDS.get(measure_type, measure_type)
        return [
            row
            for row in found
            if measure_type in ("", row.measure_type) and description in ("", row.description)
        ]

    def close(self, error: BaseException | None = None) -> None:
        """End the run: samplers stop, and another process attaches the run to the store.

        It returns when the rows can be read from the store. If that takes longer than `STORED_S` or
        fails, it warns, and the run stays in the spool.
        """
        self._close(error, wait_s=0.0 if os.environ.get(ATTACH_VARIABLE) == "no" else STORED_S)

    def _close(self, error: BaseException | None, *, wait_s: float) -> None:
        with self._lock:
            if self._owner != os.getpid() or self.folder is None:
                return
            self._owner = 0
            atexit.unregister(self._at_exit)
            if self._watch:
                self._watch.stop()
            failed = "" if error is None else f"{type(error).__name__}: {error}"
            status: Any = "failed" if failed else "finished"
            self.run.close()
            try:
                folder = RunFolder(self.folder)
                folder.end(End(status, Moment.now(), None, failed))
                folder.close()
            except OSError as problem:
                self._warn(f"{type(problem).__name__}: {problem}")
            if self.run.trouble:
                self._warn(f"{self.run.lost_events} events: {self.run.trouble}")
            if self._sidecar is None:
                return
            self._sidecar.close(wait_s=wait_s)
            if wait_s and not _is_stored(self.folder):
                self._warn("it is not in the store yet; `dippm runs --attach` says why")

    def bind(self, name: str, metrics: Sequence[Metric]) -> tuple[CallMetric, ...]:
        """Return the metrics of one function, with the sampled ones bound to this run."""
        adapted = [AdaptedMetric(metric, self, name) for metric in metrics if is_of_umlaut(metric)]
        metrics = [metric for metric in metrics if not is_of_umlaut(metric)]
        sampled = [metric for metric in metrics if isinstance(metric, Sampled)]
        others: list[CallMetric] = [m for m in metrics if not isinstance(m, Sampled)]
        others = [*adapted, *others]
        if self._watch is None:
            return tuple(others)
        with self._lock:
            mine = describe_metrics(metrics)
            if self._descriptions.get(name) != mine:
                self._descriptions[name] = mine
                self.run.tag(DESCRIPTIONS, json.dumps(self._descriptions))
        if not sampled:
            return tuple(others)
        try:
            self._watch.need(sampled)
        except OSError as error:
            self._warn(f"no sampler: {error}")
        return (Sampling(self._watch, sampled), *others)

    def _name(self, description: str, measure_type: str) -> str:
        with self._lock:
            known = len(self._logged.said)
            name = self._logged.name(description, measure_type)
            if len(self._logged.said) > known:
                self.run.tag(TYPES, json.dumps(self._logged.said))
            return name

    def _folder_of(
        self, joined: Path | None, start: Start, root: Any
    ) -> tuple[RunFolder | None, str]:
        if self.mode == "r":
            return None, ""
        try:
            if joined is not None:
                return RunFolder(joined), ""
            return RunFolder.create(start, None if root is None else Path(root).expanduser()), ""
        except OSError as error:
            self._warn(f"{type(error).__name__}: {error}")
            return None, str(error)

    def _start_sidecar(self, folder: Path, cwd: str) -> Sidecar | None:
        """Start the sidecar, which records the environment, and attaches the run at its end."""
        pid = os.getpid()
        config = SidecarConfig(str(folder), "", pid, pid, 0.0, (), program=sys.executable, cwd=cwd)
        try:
            return start_sidecar(config)
        except OSError as error:
            self._warn(f"it stays in {folder}: {error}")
            return None

    def _start(self) -> Start:
        return new_start(
            name=self.name,
            experiment=Path(self.db_file).stem,
            store=self.store,
            description=self.description,
            command=tuple(sys.orig_argv),
            tags={},
        )

    def _at_exit(self) -> None:
        self._close(getattr(sys, "last_value", None), wait_s=0.0)

    def _warn(self, trouble: str) -> None:
        _warn(f"{self.name}: not everything is kept: {trouble}")


class VisualizationBenchmark(Benchmark):
    """A store of runs, opened for reading only."""

    def __init__(self, db_file: str | os.PathLike[str]) -> None:
        super().__init__(db_file, mode="r")


def _address(db_file: str, mode: Mode) -> str:
    """Return the address of the store; one of UMLAUT's own databases is never written to."""
    if "://" in db_file:
        return db_file
    path = Path(db_file).expanduser().absolute()
    if mode == "r":
        if not path.exists():
            raise FileNotFoundError(f"there is no store {db_file}")
        return f"sqlite:///{path}"
    if path.exists() and _is_of_umlaut(path):
        path = path.with_suffix(".dippm.db")
        _warn(f"{db_file} is a database of UMLAUT: runs go to {path.name}")
    if mode == "w" and path.exists():
        aside = path.with_name(f"{path.name}.{time.time_ns()}.old")
        path.rename(aside)
        _warn(f"{path.name} was moved to {aside.name}")
    return f"sqlite:///{path}"


def _warn(text: str) -> None:
    import logging  # slow to import compared with the rest, and rarely needed

    logging.getLogger("dippm.umlaut").warning("%s", text)


def _is_stored(folder: Path) -> bool:
    from dippm.runs.store.attach import attached_to

    return bool(attached_to(folder))


def _is_of_umlaut(path: Path) -> bool:
    from dippm.umlaut.database import is_umlaut

    try:
        return is_umlaut(path)
    except (RunError, OSError):
        return False


def _parents_folder(db_file: str) -> Path | None:
    """Return the folder of the parent's run in a child process of multiprocessing."""
    # `parent_process` is not set yet while a child runs the script's top.
    words = " ".join(sys.orig_argv)
    process = sys.modules.get("multiprocessing.process")
    if (
        "multiprocessing-fork" not in words
        and "multiprocessing.forkserver" not in words
        and (process is None or process.parent_process() is None)
    ):
        return None
    folder = json.loads(os.environ.get(JOIN, "{}")).get(os.path.abspath(db_file))
    return Path(folder) if folder else None


def _tell_children(db_file: str, folder: Path) -> None:
    known = json.loads(os.environ.get(JOIN, "{}"))
    os.environ[JOIN] = json.dumps({**known, os.path.abspath(db_file): str(folder)})


# Metric classes written for UMLAUT: `before`, `after`, `meanwhile` in a thread, and `log`.


STEPS = ("before", "after", "meanwhile")


def is_of_umlaut(metric: Any) -> bool:
    """Return whether a metric has UMLAUT's methods, which `dippm.umlaut.Metric` has not."""
    return any(callable(getattr(metric, step, None)) for step in STEPS)


class AdaptedMetric:
    """Adapts a metric of UMLAUT to `tracking.metrics`; what it logs is a value of the run.

    Args:
        metric: object with UMLAUT's methods; only `measure_type` and one of `STEPS` are required.
        benchmark: object whose `log` it calls.
        method_name: name of the function.

    Attributes:
        name: name for reasons of absence.
    """

    def __init__(self, metric: Any, benchmark: Any, method_name: str) -> None:
        self.name = str(getattr(metric, "measure_type", type(metric).__name__))
        self._metric, self._benchmark, self._method_name = metric, benchmark, method_name

    def start(self) -> _Adapted:
        """Start measuring a call with a copy: UMLAUT's metrics keep the state of a call in self."""
        metric = copy.copy(self._metric)
        metric.benchmark, metric.method_name = self._benchmark, self._method_name
        if not hasattr(metric, "serialize"):
            metric.serialize = lambda: metric.data
        return _Adapted(metric, self.name)


class _Adapted:
    __slots__ = ("_finished", "_kind", "_metric", "_thread")

    def __init__(self, metric: Any, kind: str) -> None:
        self._metric, self._kind = metric, kind
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        _call(metric, "before")
        if getattr(metric, "needs_threading", False):
            self._thread = threading.Thread(
                target=_call, args=(metric, "meanwhile", self._finished), daemon=True
            )
            self._thread.start()

    def stop(self) -> Mapping[str, float | Absent]:
        self._finished.set()
        if self._thread is not None:
            self._thread.join()
        metric = self._metric
        _call(metric, "after")
        if callable(getattr(metric, "log", None)):
            metric.log()
        elif hasattr(metric, "data"):
            unit, about = getattr(metric, "unit", ""), getattr(metric, "description", self._kind)
            metric.benchmark.log(about, self._kind, metric.serialize(), unit, metric.method_name)
        return {}


def _call(metric: Any, step: str, *words: Any) -> None:
    method = getattr(metric, step, None)
    if callable(method):
        method(*words)


def plain(data: Any) -> Any:
    """Return numbers, arrays, tensors, frames and sequences as JSON data.

    Numbers that are not finite become None, since JSON has none.
    """
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple | set | frozenset | range):
        return [plain(value) for value in data]
    for method in ("tolist", "to_numpy", "numpy", "isoformat"):
        convert = getattr(data, method, None)
        if callable(convert):
            return plain(convert())
    if isinstance(data, Iterable):
        return [plain(value) for value in data]
    return str(data)


# `BenchmarkSupervisor`: a decorator or context manager that records calls as rows.


F = TypeVar("F", bound=Callable[..., Any])


class BenchmarkSupervisor:
    """Measures every call of a decorated function, or a block of a `with` statement.

    Functions, methods, generators, and async functions and generators keep their kind.

    Args:
        metrics: metrics to measure; without any, calls and failures are still recorded.
        benchmark: run to record in.
        name: name of the rows, by default the function's.
    """

    def __init__(
        self, metrics: Iterable[Metric], benchmark: Benchmark, name: str | None = None
    ) -> None:
        self.metrics = tuple(sorted(metrics, key=lambda metric: -getattr(metric, "priority", 0)))
        self.benchmark = benchmark
        self.name = name
        self._entered: ContextVar[tuple[SpanBlock, ...]] = ContextVar("entered", default=())

    def __call__(self, function: F) -> F:
        """Return the supervised function."""
        held = getattr(function, "__func__", function)  # of a static or class method
        name = self.name or str(getattr(held, "__name__", type(held).__name__))
        metrics = self.benchmark.bind(name, self.metrics)
        supervised: F = tracked(name=name, metrics=metrics, run=self.benchmark.run)(function)
        return supervised

    def __enter__(self) -> BenchmarkSupervisor:
        name = self.name or "block"
        metrics = self.benchmark.bind(name, self.metrics)
        block = self.benchmark.run.span(name, metrics=metrics)
        self._entered.set((*self._entered.get(), block))
        block.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        *rest, block = self._entered.get()
        self._entered.set(tuple(rest))
        block.__exit__(kind, error, traceback)
