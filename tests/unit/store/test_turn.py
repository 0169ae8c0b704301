"""When runs are attached: by one process, when nothing is measured, and nothing is ever lost."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from dippm.errors import RunError
from dippm.runs.store import attach_lock, tables
from dippm.runs.store.attach import MARK, attach_all, serve
from dippm.runs.store.runs import open_store
from tests.run_folders import make_run
from tests.unit.tracking import commands

HOLD = (
    "import sys; from dippm.runs.store.attach_lock import hold_live; hold_live(); "
    "print('held', flush=True); "
)
WAIT = "sys.stdin.readline()"


@pytest.fixture
def live(monkeypatch, tmp_path):
    """A file of this test's own that says whether a run goes on."""
    monkeypatch.setenv("DIPPM_LIVE", str(tmp_path / "live"))


@pytest.fixture
def spool(live, store_file, monkeypatch, tmp_path):
    """A spool whose runs are meant for a store, and nobody who waits before attaching them."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(store_file))
    monkeypatch.setattr(attach_lock, "QUIET_S", 0.0)
    return tmp_path / "spool"


def keeping(*more):
    """A process that keeps a run until it is told, or killed."""
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", HOLD + WAIT, *more]
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def served(spool, folder):
    """Take the turn of a folder's store and attach all that was asked for."""
    key = attach_lock.request_attach(folder)
    taken = attach_lock.claim_turn(spool, key)
    assert taken is not None
    serve(spool, key, taken)


@pytest.mark.usefixtures("live")
def test_a_run_goes_on_until_its_last_sidecar_is_gone_however_it_ends():
    assert not attach_lock.is_any_live()
    with keeping() as one, keeping() as other:
        assert attach_lock.is_any_live()
        one.communicate("\n")
        assert attach_lock.is_any_live()
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert not attach_lock.is_any_live()


@pytest.mark.usefixtures("live")
def test_who_looks_keeps_no_run_from_beginning():
    held = [attach_lock.hold_live() for _ in range(3)]
    assert None not in held
    assert attach_lock.is_any_live()
    for descriptor in held:
        os.close(descriptor)
    assert not attach_lock.is_any_live()


def test_a_place_where_nothing_can_be_written_keeps_nobody_waiting(monkeypatch, tmp_path):
    monkeypatch.setenv("DIPPM_LIVE", str(tmp_path / "missing" / "live"))
    assert attach_lock.hold_live() is None
    assert not attach_lock.is_any_live()


@pytest.mark.usefixtures("live")
def test_a_plan_goes_on_between_its_rows():
    from dippm.runs.plans.scheduler import _attached_later

    with _attached_later():
        assert attach_lock.is_any_live()
    assert not attach_lock.is_any_live()


def test_nothing_begins_between_two_runs(monkeypatch):
    now = itertools.count()
    monkeypatch.setattr(attach_lock.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(attach_lock.time, "sleep", lambda _: None)
    monkeypatch.setattr(attach_lock, "QUIET_S", 3)
    looks = iter([True, False, False, True, True, False, False, False])
    attach_lock.wait_until_quiet(1000.0, lambda: next(looks))
    assert next(looks, None) is None
    asked = itertools.count()
    attach_lock.wait_until_quiet(next(now) + 20.0, lambda: bool(next(asked) + 1))  # never quiet
    assert 10 < next(asked) < 30


def test_one_process_attaches_the_runs_of_all(store_file, monkeypatch, tmp_path):
    """Real runs: their sidecars say what is to be attached, and one of them stays to do it."""
    monkeypatch.setattr(commands, "PATIENCE_S", 600.0)  # it is at the lowest priority
    spool = tmp_path / "spool"
    held = {**commands.environment(spool), "MLFLOW_TRACKING_URI": str(store_file)}
    del held["DIPPM_ATTACH"]
    monkeypatch.setenv("DIPPM_LIVE", held["DIPPM_LIVE"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(store_file))
    with keeping() as other:
        for _ in range(2):
            assert commands.run(spool, "true", env=held).returncode == 0
        folders = commands.until(lambda: _of(spool, 2), "two runs that ask")
        key = attach_lock.request_attach(folders[0])
        commands.until(lambda: _is_taken(spool, key), "somebody whose turn it is")
        assert not [*spool.glob(f"*/{MARK}")]
        other.communicate("\n")
    commands.until(lambda: len([*spool.glob(f"*/{MARK}")]) == 2, "two attached runs")
    assert len(open_store(str(store_file)).runs()) == 2
    commands.until(lambda: not _is_taken(spool, key), "its end")


def _of(spool, count):
    found = sorted(file.parent for file in spool.glob(f"*/{attach_lock.KEY}"))
    return found if len(found) == count else None


def _is_taken(spool, key):
    taken = attach_lock.claim_turn(spool, key)
    if taken is not None:
        os.close(taken)
    return taken is None


KILLED = """
import os, signal, sys
from pathlib import Path
from dippm.runs.store import runs
from dippm.runs.store.attach import serve
from dippm.runs.store.attach_lock import claim_turn
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
runs.RunStore._log = die
root, key = Path(sys.argv[1]), sys.argv[2]
serve(root, key, claim_turn(root, key))
"""


def test_what_a_killed_one_left_the_next_one_attaches(spool, store_file):
    folders = [make_run(spool, number=n, ticks=10) for n in range(3)]
    for folder in folders[:2]:
        key = attach_lock.request_attach(folder)
    words = [sys.executable, "-c", KILLED, spool, key]
    assert subprocess.run(words).returncode == -9
    assert open_store(str(store_file)).runs() == []
    served(spool, folders[2])
    assert len(open_store(str(store_file)).runs()) == 3
    assert all((folder / MARK).exists() for folder in folders)


def test_a_store_that_somebody_writes_is_tried_again(spool, store_file, monkeypatch):
    folder, later = (make_run(spool, number=n, ticks=10) for n in range(2))
    monkeypatch.setattr(tables, "BUSY_S", 0.0)
    other = sqlite3.connect(store_file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RunError, match="locked"):
        served(spool, folder)
    other.execute("COMMIT")
    other.close()
    served(spool, later)
    assert len(open_store(str(store_file)).runs()) == 2


def test_a_run_that_asks_while_others_are_attached_is_attached_too(spool, store_file, monkeypatch):
    folder = make_run(spool, ticks=10)
    late = [make_run(spool, number=n, ticks=10) for n in (1, 2)]
    key = attach_lock.request_attach(folder)
    close = os.close

    def close_after(descriptor):
        if late:  # the other finds the turn taken, and goes
            attach_lock.request_attach(late.pop())
            assert attach_lock.claim_turn(spool, key) is None
        close(descriptor)

    taken = attach_lock.claim_turn(spool, key)
    monkeypatch.setattr("dippm.runs.store.attach.os.close", close_after)
    serve(spool, key, taken)
    assert len(open_store(str(store_file)).runs()) == 3


def test_runs_of_another_store_and_those_that_nobody_asked_for_stay(spool, store_file, tmp_path):
    folder = make_run(spool, ticks=10)
    other = make_run(spool, number=1, ticks=10, store=str(tmp_path / "other.db"))
    make_run(spool, number=2, ticks=10)  # as after DIPPM_ATTACH=no
    assert attach_lock.request_attach(other) != attach_lock.request_attach(folder)
    served(spool, folder)
    assert len(open_store(str(store_file)).runs()) == 1
    assert not (tmp_path / "other.db").exists()


def test_a_run_that_cannot_be_attached_keeps_no_other_back(spool, store_file):
    folders = [make_run(spool, number=n, ticks=10) for n in range(3)]
    (folders[1] / "start.json").write_text("{")
    outcome = open_store(str(store_file)).attach_many(folders)
    assert isinstance(outcome[folders[1]], RunError)
    assert len(open_store(str(store_file)).runs()) == 2


WITHOUT_LOCKS = """
import errno, fcntl, sys
from pathlib import Path
def refuse(*_):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = refuse
from dippm.runs.store.attach import serve
from dippm.runs.store.attach_lock import claim_turn
root, key = Path(sys.argv[1]), sys.argv[2]
taken = claim_turn(root, key)
print("ready", flush=True)
sys.stdin.readline()
serve(root, key, taken)
"""


def test_two_machines_share_a_folder_whose_file_system_has_no_locks(spool, store_file):
    (key,) = {attach_lock.request_attach(make_run(spool, number=n, ticks=10)) for n in range(4)}
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", WITHOUT_LOCKS, spool, key]
    machines = [
        subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)
    ]
    for machine in machines:
        assert machine.stdout.readline() == "ready\n"
    for machine in machines:
        machine.stdin.write("\n")
        machine.stdin.flush()
    said = [machine.communicate()[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{store_file}")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    assert len(client.search_runs(ids)) == 4
    assert len(open_store(str(store_file)).runs()) == 4


def test_a_list_waits_for_nobody_who_attaches(spool, store_file):
    import fcntl

    folder = make_run(spool, ticks=10)
    with (folder / ".attach.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        replayed = attach_all(spool, str(store_file))
    assert replayed.waiting == {folder: "somebody else attaches it"}
    assert len(attach_all(spool, str(store_file)).attached) == 1


def test_a_disk_that_takes_no_marks_ends_in_order(spool, store_file, monkeypatch):
    folder = make_run(spool, ticks=10)
    monkeypatch.setattr("dippm.runs.store.attach._mark", lambda *_: None)
    served(spool, folder)
    assert not (folder / MARK).exists()
    served(spool, folder)
    assert len(open_store(str(store_file)).runs()) == 1


def test_an_old_folder_goes_when_its_run_was_attached(spool, store_file):
    old, new = (make_run(spool, number=n, ticks=10) for n in range(2))
    served(spool, old)
    os.utime(old / MARK, (0, time.time() - 2 * 3600))
    served(spool, new)
    assert not old.exists()
    assert len(open_store(str(store_file)).runs()) == 2
