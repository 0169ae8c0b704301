"""The folder of a run gives back what was written, after a crash too."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dippm.errors import RunError
from dippm.runs.store.folder import EVENTS, START, RunFolder, read_folder
from dippm.runs.store.record import End, Moment, Span, Start, Value
from dippm.umlaut.rows import rows_of_folder


def started(**more: object) -> Start:
    held = {"uuid": "ab" * 16, "name": "sort", "experiment": "tests", "at": Moment.now(), **more}
    return Start(**held)  # type: ignore[arg-type]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    start = started(command=("sort", "a b"), params={"size": "1"}, prediction={"latency_ms": 1.5})
    folder = RunFolder.create(start, tmp_path)
    span = Span(1, "load", 5, 9, values={"time_s": 4e-9}, absent={"gpu": "no GPU"})
    value = Value("loss", "loss", [0.5, 0.25], 7, span=1)
    zero = Value("metric", "metric", 0, 8)
    folder.span(Span(1, "load", 5, status="open"))
    folder.span(span)
    folder.value(value)
    folder.value(zero)
    folder.settings(params={"size": "2"}, tags={"by": "me"})
    end = End("finished", Moment.now(), 0)
    folder.end(end)
    folder.close()
    found = read_folder(folder.path)
    assert (found.spans, found.values, found.end) == ((span,), (value, zero), end)
    assert found.start.params == {"size": "2"}
    assert found.start.tags == {"by": "me"}
    assert (found.start.command, found.start.at) == (start.command, start.at)
    assert found.start.prediction == start.prediction
    assert found.damaged_lines == 0


def test_a_line_that_a_crash_cut_is_counted_and_the_rest_read(tmp_path: Path) -> None:
    folder = RunFolder.create(started(), tmp_path)
    folder.span(Span(1, "whole", 1, 2))
    folder.span(Span(2, "cut", 1, 2))
    events = folder.path / EVENTS
    events.write_bytes(events.read_bytes()[:-9])
    found = read_folder(folder.path)
    assert [span.name for span in found.spans] == ["whole"]
    assert (found.damaged_lines, found.end) == (1, None)


def test_a_number_that_no_float_holds_is_a_damaged_line(tmp_path: Path) -> None:
    folder = RunFolder.create(started(), tmp_path)
    for data in (10**400, -(10**309), [1, {"seconds": 10**400}], 10**300, [2**70, True, "x"]):
        folder.value(Value("loss", "metric", data, 5))
    found = read_folder(folder.path)
    assert [value.data for value in found.values] == [10**300, [2**70, True, "x"]]
    assert found.damaged_lines == 3
    assert [row.value for row in rows_of_folder(folder.path)] == [1e300, None]


def test_threads_share_a_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(started(), tmp_path)

    def write(first: int) -> None:
        for number in range(first, first + 200):
            folder.span(Span(number, "x" * 300, 1, 2))

    threads = [threading.Thread(target=write, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_folder(folder.path)
    assert (len(found.spans), found.damaged_lines) == (800, 0)


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    RunFolder.create(started(), tmp_path)
    with pytest.raises(FileExistsError):
        RunFolder.create(started(), tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 9}', '{"version": 1}'])
def test_what_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / START).write_text(text)
    with pytest.raises(RunError, match="holds no run"):
        read_folder(tmp_path)
