"""Traces of runs: what a viewer draws is what the run was."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.errors import ListenerError, RunError
from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import Span
from dippm.runs.store.runs import open_store
from dippm.show.report.runs.trace import trace, verify
from tests.run_folders import REASON, START_NS, make_run

MS = 1_000_000


@pytest.fixture
def made(store_file, tmp_path):
    """Attach a run with further spans; return it as its store has it."""

    def make(*spans, **given):
        path = make_run(tmp_path / "spool", **given)
        folder = RunFolder(path)
        for span in spans:
            folder.span(span)
        folder.close()
        return open_store(str(store_file)).attach(path)

    return make


def slices(document):
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def named(document, kind):
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == kind
    }


def test_spans_are_slices_in_microseconds_since_the_start(made):
    document = trace(made())
    first, second, *_ = slices(document)
    assert (first["name"], first["ts"], first["dur"]) == ("forward", 0, 500_000)
    assert second["ts"] == 1_000_000
    assert first["args"]["time_s"] == 0.5
    failed = next(event for event in slices(document) if event["name"] == "backward")
    assert (failed["args"]["status"], failed["args"]["error"]) == ("failed", "ValueError")


def test_samples_are_counters_and_what_is_absent_says_why(made):
    run = made()
    events = trace(run)["traceEvents"]
    memory = [event for event in events if event["name"] == "tree.rss_mb"]
    column = next(column for column in run.columns if column.series == "tree.rss_mb")
    assert [e["args"]["MB"] for e in memory] == pytest.approx(column.values.tolist())
    assert memory[10]["ts"] == pytest.approx(1_000_000)
    cpu = [event for event in events if event["name"] == "tree.cpu_s per s"]
    assert cpu[0]["args"]["s/s"] == pytest.approx(0.5)
    absent = [event for event in events if event["ph"] == "i"]
    assert [event["name"] for event in absent] == [f"tree.power_w is absent: {REASON}"]
    assert not [event for event in events if event["name"] == "tree.power_w"]


def test_scopes_are_tracks_of_their_own(made):
    document = trace(made())
    tracks = set(named(document, "process_name").values())
    assert {"the run's process tree", "told by the run"} <= tracks
    assert "host, everybody's" not in tracks


def test_threads_and_overlapping_calls_have_lanes_of_their_own(made):
    here = "42/7"
    document = trace(
        made(
            Span(10, "outer", START_NS, START_NS + 10 * MS, thread=here),
            Span(11, "inner", START_NS + MS, START_NS + 2 * MS, thread=here, parent=10),
            Span(12, "late", START_NS + 5 * MS, START_NS + 20 * MS, thread=here),
            Span(13, "elsewhere", START_NS + 5 * MS, START_NS + 20 * MS, thread="42/8/task"),
        )
    )
    threads = named(document, "thread_name")
    lane = {e["name"]: threads[e["pid"], e["tid"]] for e in slices(document)}
    assert lane["outer"] == lane["inner"] == "thread 7"
    assert lane["late"] == "thread 7 (2)"
    assert lane["elsewhere"] == "thread 8/task"
    assert verify(document)["spans"] == 4 + 4


def test_an_open_span_lasts_to_the_end(made):
    document = trace(made(Span(10, "open", START_NS + 1000 * MS, status="open"), ticks=100))
    found = next(event for event in slices(document) if event["name"] == "open")
    assert (found["ts"], found["dur"]) == (1_000_000, 9_000_000)


def test_counters_may_have_radts_names(made):
    events = trace(made(), ["top"])["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "C" and event["cat"] == "samples"}
    assert "TOP - Memory Usage GB" in names
    assert not any(name.startswith("tree.") for name in names)
    with pytest.raises(ListenerError, match="smi"):
        trace(made(number=1), ["smi"])


BAD = {
    "no list": {"traceEvents": 3},
    "no object": {"traceEvents": [3]},
    "no ph": {"traceEvents": [{"name": "a", "pid": 1}]},
    "no dur": {"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "ts": 0}]},
    "not a number": {
        "traceEvents": [{"ph": "C", "name": "a", "pid": 1, "ts": 0, "args": {"v": "1"}}]
    },
    "not JSON": {
        "traceEvents": [{"ph": "C", "name": "a", "pid": 1, "ts": 0, "args": {"v": float("nan")}}]
    },
    "negative dur": {"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "ts": 0, "dur": -1}]},
    "overlaps": {
        "traceEvents": [
            {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 10},
            {"ph": "X", "name": "b", "pid": 1, "tid": 1, "ts": 5, "dur": 10},
        ]
    },
}


@pytest.mark.parametrize("words", BAD)
def test_a_trace_that_no_viewer_draws_right_is_refused(words):
    with pytest.raises(RunError, match=words):
        verify(BAD[words])


def test_the_commands(made, store_file, tmp_path):
    run = made()
    out = tmp_path / "trace.json"
    runner = CliRunner()
    told = runner.invoke(
        app, ["export-trace", run.uuid[:8], "--out", str(out), "--store", str(store_file)]
    )
    assert told.exit_code == 0, told.output
    assert "4 spans" in told.stdout
    document = json.loads(out.read_text())
    assert document["otherData"]["run"] == run.uuid
    checked = runner.invoke(app, ["verify-trace", str(out), "--json"])
    assert json.loads(checked.stdout) == {"schema": "dippm.verify-trace/1", **verify(document)}
    out.write_text(out.read_text().replace('"ph":"X"', '"ph":"X","dur":-1', 1)[:-1])
    refused = runner.invoke(app, ["verify-trace", str(out)])
    assert refused.exit_code == 1
    assert "is not a trace" in refused.stderr
