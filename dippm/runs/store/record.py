"""The records of a run: start, spans, values and end.

All times are `time.monotonic_ns()` of the machine that ran it, as in samples; `Start` and `End`
hold the wall-clock time of the same moment.

Records are named tuples: workloads import this, and dataclasses would add a quarter of the cost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

RunStatus = Literal["running", "finished", "failed", "timeout", "interrupted", "lost"]
SpanStatus = Literal["ok", "failed", "open"]

ValueKind = Literal[
    "metric",
    "hyperparameters",
    "loss",
    "confusion_matrix",
    "time_to_accuracy",
    "timed_time_to_accuracy",
]
"""How a value is displayed. "metric" is a number, or one number per step."""

NOTHING: Mapping[str, Any] = MappingProxyType({})
RUN_TAG = "dippm.run"
"""Tag of MLflow's own runs of a workload: the uuid of the tracked run."""


class Moment(NamedTuple):
    """One moment on both clocks.

    Attributes:
        monotonic_ns: `time.monotonic_ns()`, which orders events on one machine.
        wall_ns: `time.time_ns()`, nanoseconds since 1970.
    """

    monotonic_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> Moment:
        """Return the current moment."""
        return cls(time.monotonic_ns(), time.time_ns())


class Start(NamedTuple):
    """The record of a run's start.

    Attributes:
        uuid: 32 hexadecimal digits, the same in the folder and in the store.
        name: display name; any text.
        experiment: name of the experiment that groups runs.
        at: time of the start.
        description: one sentence of the user's.
        command: command line, empty for a block inside a program.
        folder: working directory.
        pid: root of the process tree that is sampled.
        host: name of the machine.
        group: name shared by runs that belong together (ranks of a job, a workload of a plan); ""
            for none.
        params: settings of the workload.
        tags: free text by name.
        environment: circumstances of the run: packages, commit, driver, hardware.
        store: URI of the requested store, "" for that of the process that attaches the run.
        prediction: prediction of the same work, as `Prediction.to_dict` returns it.
    """

    uuid: str
    name: str
    experiment: str
    at: Moment
    description: str = ""
    command: tuple[str, ...] = ()
    folder: str = ""
    pid: int = 0
    host: str = ""
    group: str = ""
    params: Mapping[str, str] = NOTHING
    tags: Mapping[str, str] = NOTHING
    environment: Mapping[str, str] = NOTHING
    store: str = ""
    prediction: Mapping[str, Any] | None = None


class Span(NamedTuple):
    """A named time range: a call, a block, a stage.

    Attributes:
        id: unique number in the run.
        name: name of the function or block.
        start_ns: monotonic start.
        end_ns: monotonic end; None if it was never closed.
        parent: id of the enclosing span, 0 for none.
        thread: label of process, thread and task.
        status: "failed" if an exception left it, "open" if it was never closed.
        error: type of the exception, "" without one.
        values: metrics by full name with unit ("time_s", "tree.rss_mb").
        absent: reasons for missing metrics, by name.
    """

    id: int
    name: str
    start_ns: int
    end_ns: int | None = None
    parent: int = 0
    thread: str = ""
    status: SpanStatus = "ok"
    error: str = ""
    values: Mapping[str, float] = NOTHING
    absent: Mapping[str, str] = NOTHING


class Value(NamedTuple):
    """Data that the workload logged: a number, a row, a matrix.

    Attributes:
        name: name of the metric or tracker.
        kind: meaning of `data`.
        data: JSON: a number, a list, an object.
        time_ns: monotonic time of logging.
        unit: unit of the numbers, "" for none.
        description: free text of the user's.
        span: id of the span in which it was logged, 0 for none.
        step: training step, None if it was not given.
    """

    name: str
    kind: ValueKind
    data: Any
    time_ns: int
    unit: str = ""
    description: str = ""
    span: int = 0
    step: int | None = None


class End(NamedTuple):
    """The record of a run's end.

    Attributes:
        status: how it ended; "lost" if it was killed before it could record that.
        at: time of the end.
        exit_code: exit code of a command; minus the number of a signal that ended it; None for a
            block.
        error: type and message of the error, "" for none.
    """

    status: RunStatus
    at: Moment
    exit_code: int | None = None
    error: str = ""


def as_json(record: NamedTuple) -> dict[str, Any]:
    """Return a record as a JSON-ready mapping."""
    return {name: _as_json(value) for name, value in record._asdict().items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, Moment):
        return value._asdict()
    return dict(value) if isinstance(value, Mapping) else value
