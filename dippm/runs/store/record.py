"""What is recorded of a run: how it started, spans, values and how it ended.

All times are `time.monotonic_ns()` of the machine that ran it, as those of samples are; `Start` and
`End` hold wall-clock time of the same moment.

Records are tuples with names: workloads import this, and dataclasses were a quarter of the cost.
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
"""What a value is, for whoever draws it. "metric" is one number, or one each step."""

NOTHING: Mapping[str, Any] = MappingProxyType({})
BESIDE = "dippm.run"
"""Tag of MLflow's own runs of a workload: the uuid of the run that they stand beside."""


class Moment(NamedTuple):
    """One moment on both clocks.

    Attributes:
        monotonic_ns: `time.monotonic_ns()`, which orders what happened on one machine.
        wall_ns: `time.time_ns()`, nanoseconds since 1970.
    """

    monotonic_ns: int
    wall_ns: int

    @classmethod
    def now(cls) -> Moment:
        """Return this moment."""
        return cls(time.monotonic_ns(), time.time_ns())


class Start(NamedTuple):
    """What is known of a run when it starts.

    Attributes:
        uuid: 32 hexadecimal digits; the same in the folder and in the store.
        name: for people; any text.
        experiment: what runs are gathered under.
        at: when.
        description: a sentence of the user's.
        command: as it was given, empty for a block inside a program.
        folder: where it was started.
        pid: root of the process tree that is sampled.
        host: name of the machine.
        group: runs that belong together (ranks of one job, a workload of a plan); "" for none.
        params: settings of the workload.
        tags: free words.
        environment: what the run depends on and cannot set: packages, commit, driver, hardware.
        store: URI of the store that was asked for, "" for that of whoever attaches the run.
        prediction: a prediction of the same work, as `Prediction.to_dict` gives it.
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
    """A stretch of time with a name: a call, a block, a stage.

    Attributes:
        id: unique in the run.
        name: of the function or block.
        start_ns: monotonic.
        end_ns: monotonic; None if it was never closed.
        parent: id of the span around it, 0 for none.
        thread: where it ran: process, thread and task are told apart.
        status: "failed" if an exception left it, "open" if it was never closed.
        error: type of the exception, "" without one.
        values: measured over it, by full name with unit ("time_s", "tree.rss_mb").
        absent: what was asked and could not be had, with its reason.
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
    """Something that the workload told: a number, a row, a matrix.

    Attributes:
        name: of the metric or tracker.
        kind: says what `data` holds.
        data: JSON: a number, a list, an object.
        time_ns: monotonic, when it was told.
        unit: of the numbers in it, "" for none.
        description: free text of the user's.
        span: id of the span it was told in, 0 for none.
        step: of a training, None if it was not said.
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
    """How a run ended.

    Attributes:
        status: "lost" if whoever should have written this was killed.
        at: when.
        exit_code: of a command; negative of the signal that ended it; None for a block.
        error: type and message of what ended it, "" if nothing did.
    """

    status: RunStatus
    at: Moment
    exit_code: int | None = None
    error: str = ""


def as_json(record: NamedTuple) -> dict[str, Any]:
    """Return a record by its names, of what JSON can hold."""
    return {name: _as_json(value) for name, value in record._asdict().items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, Moment):
        return value._asdict()
    return dict(value) if isinstance(value, Mapping) else value
