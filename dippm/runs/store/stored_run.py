"""`StoredRun`: a run in the store; what a list shows is at hand, the rest is fetched when asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dippm.errors import RunError, shortened
from dippm.runs.store.columns import Column
from dippm.runs.store.folder import ARTIFACTS, checked, end_of, start_of
from dippm.runs.store.record import End, RunStatus, Span, Start, Value
from dippm.runs.store.summary import Summary

if TYPE_CHECKING:
    import pyarrow

Part = TypeVar("Part")
RECORD, SAMPLES, DOCUMENTS = "run.json", "samples", "documents"


@dataclass(frozen=True)
class StoredRun:
    """A run in the store.

    Attributes:
        uuid: as in its folder.
        name: for people; any text.
        experiment: what it is gathered under.
        status: how it ended.
        wall_ns: when it started, nanoseconds since 1970.
        seconds: how long it took.
        description: a sentence of the user's.
        metrics: by name: "SERIES.NUMBER" of summaries, and the last of each metric it told.
        id: of MLflow.
        fetch: gives the path of an artifact, or None if there is no such.
        group: runs that belong together, "" for none.
        words: all texts that a search looks in, in lower case.
        params: settings of the workload, shortened to what MLflow keeps.
        tags: free words that the user gave, likewise.
        attaching: whether somebody takes it into the store now; this is what its folder says.
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
        """How it started, with all params, tags and the environment."""
        return self._part("start", start_of)

    @cached_property
    def end(self) -> End:
        """How it ended."""
        return self._part("end", end_of)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """In the order of their ids."""
        return self._part("spans", lambda held: tuple(checked(Span, span) for span in held))

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """In the order they were told."""
        return self._part("values", lambda held: tuple(checked(Value, value) for value in held))

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """By full name of the series, "<source>.<quantity>"."""
        found = self._part("summaries", lambda held: [checked(Summary, one) for one in held])
        return {summary.series: summary for summary in found}

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What of the folder could not be read."""
        return self._part("remarks", _texts)

    @cached_property
    def artifacts(self) -> tuple[str, ...]:
        """Files that the run told of, by their paths."""
        return self._part("artifacts", _texts) if "artifacts" in self._record else ()

    def artifact(self, name: str) -> Path:
        """Return a copy of a file that the run told of.

        Raises:
            RunError: if it told of no such file, or if it is gone.
        """
        found = self.fetch(f"{ARTIFACTS}/{name}") if name in self.artifacts else None
        if found is None:
            known = ", ".join(self.artifacts) or "none"
            raise RunError(f"run {self.uuid[:8]} has no artifact {name!r}", f"It has: {known}.")
        return found

    @property
    def prediction(self) -> Mapping[str, Any] | None:
        """A prediction of the same work, None if there was none."""
        return self.start.prediction

    @property
    def comparison(self) -> dict[str, Any] | None:
        """What `RunStore.keep` was given as "comparison", None if nothing was."""
        return self.document("comparison")

    def document(self, name: str) -> dict[str, Any] | None:
        """Return what `RunStore.keep` was given under a name, None if nothing was."""
        return self._document(f"{DOCUMENTS}/{name}.json")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All series, raw."""
        from dippm.runs.store.parquet import read_samples

        folder = self.fetch(SAMPLES)
        return tuple(read_samples(folder)) if folder is not None else ()

    def samples(self) -> pyarrow.Table:
        """Return a row per sample: series, time_ns (monotonic), value, absent (its reason)."""
        from dippm.runs.store.parquet import long_table

        return long_table(self.columns)

    def _part(self, name: str, read: Callable[[Any], Part]) -> Part:
        """Return a part of the record, whose types are those that its readers count on."""
        if name not in self._record:
            raise _damaged(self.uuid, f"no {name}")
        try:
            return read(self._record[name])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(self.uuid, f"{name}: {error}") from error

    def _document(self, path: str) -> dict[str, Any] | None:
        found = self.fetch(path)
        if found is None:
            return None
        try:
            held = json.loads(found.read_bytes())
            if not isinstance(held, dict):
                raise ValueError(f"it is {shortened(repr(held))}")
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(self.uuid, f"{path}: {error}") from error
        return held


def _texts(held: Any) -> tuple[str, ...]:
    if not isinstance(held, list) or not all(isinstance(text, str) for text in held):
        raise ValueError(f"no texts but {shortened(repr(held))}")
    return tuple(held)


def _damaged(uuid: str, what: str) -> RunError:
    hint = "Its artifacts are lost or damaged; take them from a copy."
    return RunError(f"the record of run {uuid} cannot be read: {what}", hint)
