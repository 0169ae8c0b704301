"""What a program tells arrives, whoever tells it, and no fault reaches the program."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dippm.errors import RunError
from dippm.runs.tracking import current, span
from dippm.runs.tracking.run import JOIN_VARIABLE

ROOT = Path(__file__).parents[3]


def test_values_params_and_tags(open_run):
    run = open_run.run
    with run.span("epoch") as block:
        run.log("loss", 0.5, step=3, unit="nats", description="of the last batch")
    run.log("loss", float("nan"))
    run.tell("labels", "confusion_matrix", {"matrix": [[1, 0], [0, 1]]})
    run.params({"lr": 0.1, "lr2": None})
    run.params({"lr": 0.2})
    run.tag("nightly")
    recorded = open_run.read()
    first, second, matrix = recorded.values
    assert (first.data, first.step, first.unit, first.span) == (0.5, 3, "nats", block.id)
    assert second.data != second.data
    assert second.span == 0
    assert matrix.data == {"matrix": [[1, 0], [0, 1]]}
    assert dict(recorded.start.params) == {"lr": "0.2", "lr2": "None"}
    assert dict(recorded.start.tags) == {"nightly": ""}
    assert run.lost_events == 0


def test_what_is_no_number_is_said(open_run):
    with pytest.raises(RunError, match="one number at a time"):
        open_run.run.log("loss", [1, 2])


def test_names_of_any_text_arrive(open_run):
    names = ['quo"te', "new\nline", "ünï 日本", "\udcff", "", "a" * 10_000]
    for name in names:
        with span(name):
            open_run.run.log(name, 1)
    recorded = open_run.read()
    assert [s.name for s in recorded.spans] == names
    assert recorded.damaged_lines == 0
    assert len(recorded.values) == len(names)


def test_a_span_that_was_never_left_is_open(open_run):
    open_run.run.span("left behind").__enter__()
    (found,) = open_run.named("left behind")
    assert (found.status, found.end_ns) == ("open", None)


@pytest.mark.parametrize("fault", ["closed", "folder gone"])
def test_a_lost_folder_is_no_error(open_run, fault):
    run = open_run.run
    assert run.path is not None
    with span("before"):
        if fault == "closed":
            run.close()
        else:
            shutil.rmtree(run.path)
    with span("after"):
        run.log("loss", 1)
        run.tag("late")


def test_a_full_disk_is_counted_and_no_error(open_run):
    run = open_run.run
    with span("before"):
        pass
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (run.path / "events.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))  # SIGXFSZ is ignored in Python
    try:
        for _ in range(3):
            with span("lost"):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with span("again"):
        pass
    assert run.lost_events >= 5
    assert "File too large" in run.trouble
    assert [s.name for s in open_run.read().spans if s.status == "ok"][-1] == "again"
    assert open_run.read().damaged_lines <= 1


def test_a_fork_writes_ids_of_its_own(open_run):
    with span("parent"):
        pass
    child = os.fork()
    if not child:
        code = 1
        try:
            for _ in range(3):
                with span("child"):
                    pass
            code = 0
        finally:
            os._exit(code)
    for _ in range(3):
        with span("parent"):
            pass
    assert os.waitpid(child, 0)[1] == 0
    assert (len(open_run.named("parent")), len(open_run.named("child"))) == (4, 3)
    assert {s.thread.split("/")[0] for s in open_run.named("child")} == {str(child)}


def test_a_fork_while_another_thread_writes(open_run):
    run = open_run.run
    held, done = threading.Event(), threading.Event()

    def hold():
        with run._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        with span("child"):
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()
    assert len(open_run.named("child")) == 1


def test_other_programs_join_through_the_environment(open_run):
    code = """
import dippm
from dippm.runs.tracking import current, tracked
@tracked(name="joined")
def work(): pass
for _ in range(3): work()
current().log("loss", 1)
"""
    environment = {**os.environ, JOIN_VARIABLE: str(open_run.run.path), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", code]
    children = [subprocess.Popen(words, env=environment) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    joined = open_run.named("joined")
    assert len(joined) == 6
    assert {s.thread.split("/")[0] for s in joined} == {str(child.pid) for child in children}
    assert len(open_run.read().values) == 2


@pytest.mark.parametrize("named", ["/nowhere/at/all", "/proc/self"])
def test_an_environment_that_names_no_run_is_no_error(named):
    code = "import dippm.runs.tracking as t\nwith t.span('x'): print(t.current())"
    environment = {**os.environ, JOIN_VARIABLE: named, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, b"None\n", b"")


def test_the_innermost_run_is_current(open_run):
    found = []
    thread = threading.Thread(target=lambda: found.append(current()))
    thread.start()
    thread.join()
    assert found == [open_run.run] == [current()]
