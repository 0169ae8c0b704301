"""Whatever happens to a scheduler, its rows or its plan: nothing is left, and it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from dippm.runs.plans.journal import is_left, left_open, state_folder
from dippm.runs.plans.row import Process, Status
from dippm.runs.plans.table import StatusWriter, read_plan
from dippm.runs.plans.workload import processes_of
from tests.unit.plans.desks import HEADER, interrupt, lines, next_line, told
from tests.unit.tracking.commands import alive, line_of, until

DEAF = """
import os, signal, sys, time
for name in sys.argv[1].split("+"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()  # a process that leaves the group and goes on
    os.close(1)
    time.sleep(1000)
print(os.getpid(), flush=True)
time.sleep(1000)
"""


def run_of(desk, row=1):
    return desk.read().rows[row - 1].run


def left_of(desk):
    """Processes of any run of the desk."""
    return [pid for folder in desk.spool.glob("*") for pid in processes_of(str(folder))]


def journal_of(desk, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.state))
    return state_folder(desk.plan.resolve())


def test_ctrl_c_twice_ends_at_once_what_ignores_it(desk):
    desk.script("deaf.py", DEAF)
    desk.rows("1,1,,,-,-,deaf.py,-,SIGINT+SIGTERM", "1,2,,,-,-,echo,-,never")
    process = desk.start()
    pid = int(next_line(process, "line")["line"])
    folder = str(desk.spool / run_of(desk))
    until(lambda: len(processes_of(folder)) == 2, "the child")
    interrupt(process)
    next_line(process, "say")
    assert alive(pid)
    interrupt(process)
    out, _ = process.communicate(timeout=60)
    assert told(out)[-1]["signal"] == signal.SIGINT
    assert not processes_of(folder)
    assert desk.statuses() == ["INTERRUPTED", "PENDING"]
    assert desk.recorded(run_of(desk)).end.status == "interrupted"


@pytest.mark.nightly(part="processes")
def test_ctrl_c_once_ends_what_ignores_sigterm_too(desk):
    desk.script("deaf.py", DEAF)
    desk.rows("1,1,,,-,-,deaf.py,-,SIGINT+SIGTERM")
    process = desk.start()
    pid = int(next_line(process, "line")["line"])
    interrupt(process)
    process.communicate(timeout=60)
    assert not alive(pid)
    assert not left_of(desk)
    assert desk.statuses() == ["INTERRUPTED"]
    assert desk.recorded(run_of(desk)).end.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_scheduler_that_is_asked_to_end(desk, name):
    desk.rows("1,1,,,-,-,sh -c,-,'echo begun; sleep 1000'")
    process = desk.start()
    next_line(process, "line")
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=60)
    assert told(out)[-1]["signal"] == getattr(signal, name)
    assert not left_of(desk)
    assert desk.statuses() == ["INTERRUPTED"]


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["SIGHUP", "SIGINT+SIGTERM"])
def test_the_time_of_a_row_is_over(desk, deaf):
    """SIGINT, then SIGTERM, then SIGKILL to all of its processes; its samples are kept."""
    desk.script("deaf.py", DEAF)
    desk.rows(f"1,1,,,-,-,deaf.py,-,{deaf}", "1,2,,,-,-,echo,-,next")
    heard = desk.run(timeout_s=0.5)
    assert "next" in lines(heard)
    assert desk.statuses() == ["TIMEOUT", "FINISHED"]
    assert not left_of(desk)
    recorded = desk.recorded(run_of(desk))
    assert recorded.end.status == "timeout"
    assert recorded.samples
    assert desk.run()[-1]["ran"] == []
    assert desk.run(rerun_failed=True, timeout_s=0.1)[-1]["ran"] == [1]


def test_the_scheduler_is_killed_and_nothing_goes_on(desk, monkeypatch):
    desk.rows("1,1,,,-,-,sh -c,-,'echo begun; sleep 1000'", "1,2,,,-,-,echo,-,later")
    process = desk.start()
    next_line(process, "line")
    status = Status(*desk.statuses()[0].split(" ", 1))
    row = Process.parse(status.detail)
    assert row.goes_on
    process.kill()
    process.communicate()
    until(lambda: not row.goes_on, "the end of the row's process")
    until(lambda: not left_of(desk), "the end of its command")
    assert desk.statuses()[0] == str(status)
    (left,), seats = left_open(journal_of(desk, monkeypatch))
    assert (left.row, left.run) == (1, run_of(desk))
    assert len(seats) == 1
    assert desk.recover() == ["row 1 is INTERRUPTED"]
    assert desk.statuses() == ["INTERRUPTED", "PENDING"]
    assert desk.recover() == []
    assert not journal_of(desk, monkeypatch).exists()


def test_the_scheduler_and_the_process_of_its_row_are_killed(desk, monkeypatch):
    """Nobody is left who could end the command: `recover` finds it by the run that it carries."""
    desk.script("deaf.py", DEAF)
    desk.rows("1,1,,,-,-,deaf.py,-,SIGHUP")
    process = desk.start()
    pid = int(next_line(process, "line")["line"])
    row = Process.parse(desk.statuses()[0].removeprefix("RUNNING "))
    os.kill(process.pid, signal.SIGSTOP)  # it must not see the end of its row
    os.kill(row.pid, signal.SIGKILL)
    process.kill()
    process.communicate()
    until(lambda: not row.goes_on, "the end of the row's process")
    assert alive(pid)
    said = desk.recover()
    assert said[0].startswith("row 1: ")
    assert said[0].endswith("processes of its run were ended")
    assert said[1] == "row 1 is LOST"
    assert not alive(pid)
    assert not left_of(desk)
    assert desk.statuses() == ["LOST"]
    assert desk.recorded(run_of(desk)).end.status == "lost"


def test_what_was_left_is_undone_by_the_next_scheduler_too(desk):
    asked_first = "test -e go && exec echo begun; echo begun; sleep 1000"
    desk.rows(f"1,1,,,-,-,sh -c,-,'{asked_first}'")
    process = desk.start()
    next_line(process, "line")
    process.kill()
    process.communicate()
    (desk.folder / "go").touch()
    heard = desk.run()
    assert {"say": "row 1 is INTERRUPTED"} in heard
    assert lines(heard) == ["begun"]
    assert desk.statuses() == ["FINISHED"]


def test_the_process_of_a_row_is_killed(desk):
    desk.script("deaf.py", DEAF)
    desk.rows("1,1,,,-,-,deaf.py,-,SIGHUP", "1,2,,,-,-,echo,-,next")
    process = desk.start()
    pid = int(next_line(process, "line")["line"])
    row = Process.parse(desk.statuses()[0].removeprefix("RUNNING "))
    os.kill(row.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert "next" in lines(told(out))
    assert desk.statuses() == ["LOST", "FINISHED"]
    assert not alive(pid)
    assert not left_of(desk)


def test_two_schedulers_on_one_plan(desk):
    desk.script("wait.py", "print('waits', flush=True)\nimport sys; sys.stdin.read()")
    desk.rows("1,1,,,-,-,sh -c,-,'echo waits; while ! test -e go; do sleep 0.01; done'")
    first = desk.start()
    next_line(first, "line")
    heard = desk.run()
    assert heard[-1]["error"] == "PlanError"
    assert f"process {first.pid}" in heard[-1]["message"]
    assert desk.statuses()[0].startswith("RUNNING")
    (desk.folder / "go").touch()
    first.communicate(timeout=60)
    assert desk.statuses() == ["FINISHED"]


def test_a_row_that_runs_on_another_machine_is_left_alone(desk):
    desk.rows("1,1,RUNNING elsewhere:12:345,0a,-,-,true,-,", "1,2,,,-,-,echo,-,mine")
    heard = desk.run()
    assert lines(heard) == ["mine"]
    assert heard[-1]["skipped"] == [1]
    assert "it runs on elsewhere" in heard[0]["say"]
    assert desk.statuses() == ["RUNNING elsewhere:12:345", "FINISHED"]


def test_a_row_that_somebody_else_runs_here(desk):
    desk.rows(f"1,1,RUNNING {Process.of(os.getpid())},0a,-,-,true,-,")
    heard = desk.run()
    assert "row 1 is being run by another scheduler" in heard[-1]["message"]


def test_the_plan_is_edited_while_it_runs(desk):
    desk.rows(
        "1,1,,,-,-,sh -c,-,'echo waits; while ! test -e go; do sleep 0.01; done'",
        "1,2,,,-,-,echo,-,second",
    )
    process = desk.start()
    next_line(process, "line")
    edited = HEADER + "9,9,,,-,-,echo,-,new\n" + desk.plan.read_text().split("\n", 1)[1]
    desk.plan.write_text(edited)
    (desk.folder / "go").touch()
    out, _ = process.communicate(timeout=60)
    says = [words["say"] for words in told(out) if "say" in words]
    assert says == [
        "the plan was changed by somebody else meanwhile: "
        "the status of its rows goes to plan.csv.status.csv"
    ]
    assert desk.plan.read_text() == edited
    assert desk.statuses() == ["PENDING", "FINISHED", "FINISHED"]

    heard = desk.run()
    assert lines(heard) == ["new"]
    assert {"say": "plan.csv.status.csv was taken over into the plan"} in heard
    assert not (desk.folder / "plan.csv.status.csv").exists()
    assert desk.plan.read_text().count("FINISHED") == 3


def test_the_plan_is_removed_while_it_runs(desk):
    desk.rows("1,1,,,-,-,rm,-,plan.csv", "1,2,,,-,-,echo,-,second")
    assert lines(desk.run()) == ["second"]
    assert not desk.plan.exists()
    assert (desk.folder / "plan.csv.status.csv").read_text().count("FINISHED") == 2


def test_a_status_that_cannot_be_written_harms_no_run(desk, monkeypatch):
    """A full disk, for one: it is said once, and the old plan stays whole."""
    import dippm.runs.plans.table as book

    desk.rows("1,1,,,-,-,true,-,")
    before = desk.plan.read_bytes()

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(book, "write_whole", full)
    said = []
    written = StatusWriter(desk.read(), said.append)
    written.write({1: (Status("RUNNING"), "0a")})
    written.write({1: (Status("FINISHED"), "0a")})
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert desk.plan.read_bytes() == before
    assert written.row(1).status == Status("FINISHED")


def test_a_crash_while_the_plan_is_written_leaves_the_old_one(desk):
    desk.rows(*["1,1,,,-,-,true,-,"] * 500)
    code = """
import os, sys
from pathlib import Path
from dippm.runs.plans.table import StatusWriter
from dippm.runs.plans.table import read_plan
from dippm.runs.plans.row import Status
book = StatusWriter(read_plan(Path("plan.csv")), print)
print("ready", flush=True)
while True:
    for word in ("FINISHED", "FAILED"):
        book.write({n: (Status(word), "0" * 32) for n in range(1, 501)})
"""
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=desk.folder,
            env=desk.environment,
            stdout=subprocess.PIPE,
        )
        assert line_of(process) == "ready"
        seen = desk.plan.stat().st_ino
        until(lambda seen=seen: desk.plan.stat().st_ino != seen, "a new plan")
        process.kill()
        process.communicate()
        words = {row.status.word for row in desk.read().rows}
        assert len(words) == 1


def test_the_store_dies_in_mid_plan(desk, store_file):
    """The plan goes on, runs wait in the spool, and are attached once when the store is back."""
    hidden = store_file.with_suffix(".hidden")
    dies = f"mv {store_file} {hidden}; mkdir {store_file}"
    desk.rows(f"1,1,,,-,-,sh -c,-,'{dies}'", "1,2,,,-,-,echo,-,on")
    heard = desk.run(store=f"sqlite:///{store_file}")
    assert lines(heard) == ["on"]
    assert desk.statuses() == ["FINISHED", "FINISHED"]
    runs = {row.run for row in desk.read().rows}
    for run in runs:
        assert desk.recorded(run).end.status == "finished"

    from dippm.runs.store.attach import attach_all

    assert {path.name for path in attach_all(desk.spool).waiting} == runs
    store_file.rmdir()
    hidden.rename(store_file)
    assert {run.uuid for run in attach_all(desk.spool).attached} == runs
    assert not attach_all(desk.spool).attached


def test_clocks_that_jump(desk):
    """The wall clock goes back by a year in the scheduler: times are those of the monotonic one."""
    before = (
        "import time; real = time.time_ns; at = [0]\n"
        "def back():\n"
        "    at[0] += 1\n"
        "    return real() - at[0] * 31_536_000_000_000_000\n"
        "time.time_ns = back; time.time = lambda: back() / 1e9\n"
    )
    desk.rows("1,1,,,-,-,sleep,-,0.3", "1,2,,,-,-,true,-,")
    began = time.monotonic()
    heard = desk.run(before)
    took = time.monotonic() - began
    assert 0.3 <= heard[-1]["seconds"] <= took
    seconds = [words["seconds"] for words in heard if "became" in words]
    assert 0.3 <= seconds[0] <= took
    assert desk.statuses() == ["FINISHED", "FINISHED"]


def test_a_journal_that_cannot_be_written(desk):
    desk.state.write_text("a file, where a folder should be")
    desk.rows("1,1,,,-,-,echo,-,never")
    heard = desk.run()
    assert heard[-1]["error"] == "PlanError"
    assert "the journal of the plan cannot be written" in heard[-1]["message"]
    assert desk.statuses() == ["PENDING"]


def test_a_journal_with_lines_that_nobody_wrote(tmp_path):
    lines = ["[]", "7", '{"row": []}', '{"row": 2, "run": "ab", "folder": "/x"}', "[" * 9000]
    lines += ['{"row": 1, "process": 5}', '{"scheduler": null}', '{"row": 1, "process": "h:²:1"}']
    lines += [
        '{"row": 1, "run": {}, "folder": "/x"}',
        '{"row": 1, "process": "h:%s:1"}' % ("9" * 5000),
    ]
    (tmp_path / "journal.jsonl").write_text("\n".join(lines))
    assert is_left(tmp_path)
    rows, seats = left_open(tmp_path)
    assert [(row.row, row.process, row.run) for row in rows] == [(1, None, "")]
    assert not seats


def test_a_journal_that_ends_in_the_middle_of_a_line(desk, monkeypatch):
    folder = journal_of(desk, monkeypatch)
    folder.mkdir(parents=True)
    text = '{"scheduler": "gone:1:1"}\n{"row": 1}\n{"row": 1, "process": "gone:1:1"}\n{"ro'
    (folder / "journal.jsonl").write_text(text)
    desk.rows("1,1,,,-,-,echo,-,goes on")
    assert lines(desk.run()) == ["goes on"]


def test_a_status_file_that_is_damaged(desk):
    desk.rows("1,1,,,-,-,true,-,")
    (desk.folder / "plan.csv.status.csv").write_text("Experiment\n1\n")
    heard = desk.run()
    assert "plan.csv.status.csv cannot be read" in heard[-1]["message"]


def test_what_a_plan_says_of_a_row_is_known_again_after_an_edit(desk):
    desk.rows("1,1,,,-,-,true,-,", "1,1,,,-,-,true,-,", "1,2,,,-,-,echo,-,x")
    noted = HEADER + "1,1,FINISHED,0a,-,-,true,-,\n1,1,FAILED 3,0b,-,-,true,-,\n"
    (desk.folder / "plan.csv.status.csv").write_text(noted)
    rows = read_plan(desk.plan).rows
    assert [str(row.status) for row in rows] == ["FINISHED", "FAILED 3", "PENDING"]
    assert [row.run for row in rows] == ["0a", "0b", ""]
