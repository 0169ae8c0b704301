"""A run to write to."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dippm.runs.store.folder import RecordedRun, RunFolder, read_folder
from dippm.runs.store.record import Moment, Span, Start
from dippm.runs.tracking.run import Run, enter, leave


@dataclass
class Open:
    run: Run

    def read(self) -> RecordedRun:
        assert self.run.path is not None
        return read_folder(self.run.path)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.read().spans if span.name == name]


@pytest.fixture
def open_run(tmp_path: Path) -> Iterator[Open]:
    start = Start(uuid.uuid4().hex, "test", "tests", Moment.now())
    run = Run(start.uuid, RunFolder.create(start, tmp_path / "spool"))
    before = enter(run)
    try:
        yield Open(run)
    finally:
        leave(run, before)
        run.close()
