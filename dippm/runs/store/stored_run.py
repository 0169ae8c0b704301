"""`StoredRun`: a run in the store; list fields are loaded, the rest is fetched on demand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dippm.errors import RunError, shortened
from dippm.runs.store.columns import Column, Summary
from dippm.runs.store.folder import ARTIFACTS, checked, end_of, start_of
from dippm.runs.store.record import End, RunStatus, Span, Start, Value

if TYPE_CHECKING:
    import pyarrow

Part = TypeVar("Part")
RECORD, SAMPLES, DOCUMENTS = "run.json", "samples", "documents"


@dataclass(frozen=True)
class StoredRun:
    """A run in the store.

    Attributes:
        uuid: uuid, as in its folder.
        name: display name; any text.
        experiment: name of the experiment.
        status: how it ended.
        wall_ns: start in nanoseconds since 1970.
        seconds: duration.
        description: one sentence of the user's.
        metrics: by name: "SERIES.NUMBER" of summaries, and the last value of each logged metric.
        id: MLflow's run id.
        fetch: returns the path of an artifact, or None if it does not exist.
        group: name shared by runs that belong together, "" for none.
        words: all searchable text, in lower case.
        params: settings of the workload, shortened to MLflow's limit.
        tags: the user's tags, likewise shortened.
        attaching: whether another process is attaching it; its data then comes from its folder.
    """

    uuid: str
    name: str
    experiment: str
    status: RunStatus
    wall_ns: int
    seconds: float
    description: str
    metrics: Mapping[str, float]
    id: str
    fetch: Callable[[str], Path | None] = field(repr=False, compare=False)
    group: str = ""
    words: str = field(default="", repr=False)
    params: Mapping[str, str] = field(default_factory=dict, repr=False)
    tags: Mapping[str, str] = field(default_factory=dict, repr=False)
    attaching: bool = False

    @cached_property
    def _record(self) -> dict[str, Any]:
        return self._document(RECORD) or {}

    @cached_property
    def start(self) -> Start:
        """Record of the start, with all params, tags and the environment."""
        return self._part("start", start_of)

    @cached_property
    def end(self) -> End:
        """Record of the end."""
        return self._part("end", end_of)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Spans in the order of their ids."""
        return self._part("spans", lambda held: tuple(checked(Span, span) for span in held))

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Values in the order of logging."""
        return self._part("values", lambda held: tuple(checked(Value, value) for value in held))

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Summaries by full name of the series, "<source>.<quantity>"."""
        found = self._part("summaries", lambda held: [checked(Summary, one) for one in held])
        return {summary.series: summary for summary in found}

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """Descriptions of unreadable parts of the folder."""
        return self._part("remarks", _texts)

    @cached_property
    def artifacts(self) -> tuple[str, ...]:
        """Relative paths of the stored artifacts."""
        return self._part("artifacts", _texts) if "artifacts" in self._record else ()

    def artifact(self, name: str) -> Path:
        """Return a copy of an artifact.

        Raises:
            RunError: if the run has no such artifact, or it is lost.
        """
        found = self.fetch(f"{ARTIFACTS}/{name}") if name in self.artifacts else None
        if found is None:
            known = ", ".join(self.artifacts) or "none"
            raise RunError(f"run {self.uuid[:8]} has no artifact {name!r}", f"It has: {known}.")
        return found

    @property
    def prediction(self) -> Mapping[str, Any] | None:
        """Prediction of the same work, None if there was none."""
        return self.start.prediction

    @property
    def comparison(self) -> dict[str, Any] | None:
        """Document that `RunStore.keep` stored as "comparison", None without one."""
        return self.document("comparison")

    def document(self, name: str) -> dict[str, Any] | None:
        """Return a document that `RunStore.keep` stored under a name, None without one."""
        return self._document(f"{DOCUMENTS}/{name}.json")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All raw series."""
        from dippm.runs.store.parquet import read_samples

        folder = self.fetch(SAMPLES)
        return tuple(read_samples(folder)) if folder is not None else ()

    def samples(self) -> pyarrow.Table:
        """Return one row per sample: series, time_ns (monotonic), value, absent (its reason)."""
        from dippm.runs.store.parquet import long_table

        return long_table(self.columns)

    def _part(self, name: str, read: Callable[[Any], Part]) -> Part:
        """Return a part of the record with its types checked."""
        if name not in self._record:
            raise _damage_error(self.uuid, f"no {name}")
        try:
            return read(self._record[name])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damage_error(self.uuid, f"{name}: {error}") from error

    def _document(self, path: str) -> dict[str, Any] | None:
        found = self.fetch(path)
        if found is None:
            return None
        try:
            held = json.loads(found.read_bytes())
            if not isinstance(held, dict):
                raise ValueError(f"it is {shortened(repr(held))}")
        except (OSError, ValueError, RecursionError) as error:
            raise _damage_error(self.uuid, f"{path}: {error}") from error
        return held


def _texts(held: Any) -> tuple[str, ...]:
    if not isinstance(held, list) or not all(isinstance(text, str) for text in held):
        raise ValueError(f"no texts but {shortened(repr(held))}")
    return tuple(held)


def _damage_error(uuid: str, what: str) -> RunError:
    hint = "Its artifacts are lost or damaged; take them from a copy."
    return RunError(f"the record of run {uuid} cannot be read: {what}", hint)
