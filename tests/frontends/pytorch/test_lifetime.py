"""Nothing outlives the one who asked: workers, what they started, and temporary folders."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from dippm.base import progress
from dippm.errors import ConditionsError, ConversionError
from dippm.model import frontends
from dippm.model.frontends.worker import WorkerPool

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")

FRONTEND = """
    import json, os, sys, time
    from pathlib import Path
    from dippm.base.progress import tell
    from dippm.model.relax.raw_graph import RawGraph, RawOperator, RawValue

    NAME = "lingering"

    def accepts(path):
        return path.name.startswith("lingering")

    def load(path, inputs, *, trust):
        child = None
        if "child" in path.name:
            child = os.fork()  # no program is started in a sandbox
            while not child:
                time.sleep(600)
        if "stages" in path.name:
            for i in range(20000):
                tell(f"operator {i:,} of 20,000")
            tell("writing")
        folder = os.environ["TMPDIR"]
        (Path(folder) / "scratch").write_text("half done")
        noted = json.dumps({"worker": os.getpid(), "child": child, "folder": folder})
        part = Path(folder) / "note.part"
        part.write_text(noted)
        part.rename(Path(folder) / "note.json")
        if "says" in path.name:
            tell(noted)
        if "sleeps" in path.name:
            time.sleep(600)
        if "locked" in path.name:  # as C code that never lets go of the interpreter
            sys.setswitchinterval(1000)
            while True:
                pass
        value = RawValue((1009, os.getpid()), "float32", "input", "x")
        return RawGraph((value,), (RawOperator("relu", (0,), (0,)),), (0,), (0,), 1009)
"""

ASK = """
import sys
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.worker import POOL
request = {"source": sys.argv[1], "inputs": InputSpec({}).to_dict(), "trust": False}
with POOL.borrow("lingering_frontend", 2048) as worker:
    worker.convert(request, timeout_s=float(sys.argv[2]))
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "lingering_frontend.py").write_text(textwrap.dedent(FRONTEND))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def start(home):
    callers = []
    yield partial(start_caller, home, callers)
    for caller in callers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(caller.pid, signal.SIGKILL)
        caller.communicate()


def start_caller(home, callers, *words, script=ASK):
    """Start a caller; return it with what its worker notes once it converts."""
    (folders := home / "tmp").mkdir()
    paths = os.pathsep.join(p for p in sys.path if p)
    caller = subprocess.Popen(
        [sys.executable, "-c", script, *words],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folders)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    callers.append(caller)
    notes: list[Path] = []
    until(
        lambda: notes.extend(folders.glob("*/note.json")) or notes or caller.poll() is not None,
        "the worker converts",
    )
    assert notes, caller.communicate()
    return caller, json.loads(notes[0].read_text())


def until(happened, what):
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, f"not within two minutes: {what}"
        time.sleep(0.02)


def runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(noted):
    processes = [pid for pid in (noted["worker"], noted["child"]) if pid]
    return not any(map(runs, processes)) and not Path(noted["folder"]).exists()


@pytest.mark.parametrize("mood", ["sleeps", "sleeps child", "locked"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_caller_leaves_nothing(start, mood, number):
    caller, noted = start(mood, "600")
    assert runs(noted["worker"])
    caller.send_signal(number)
    caller.communicate()
    assert caller.returncode == -number
    until(lambda: gone(noted), "worker, child and folder are gone")


def test_an_idle_worker_ends_with_its_killed_caller(start):
    script = ASK + "\nimport signal; signal.pause()"
    caller, noted = start("fine", "600", script=script)
    caller.kill()
    caller.communicate()
    until(lambda: gone(noted), "worker and folder are gone")


def test_a_worker_outlives_the_thread_that_started_it(home):
    pool, first = WorkerPool(), []
    thread = threading.Thread(target=lambda: first.append(convert(pool, "lingering")))
    thread.start()
    thread.join()
    assert convert(pool, "lingering") == first[0]  # its shape holds the process id
    pool.close()


def test_a_fork_leaves_the_workers_to_its_parent(home):
    pool = WorkerPool()
    first = convert(pool, "lingering")
    child = os.fork()
    if not child:
        pool.close()  # as at its exit
        os._exit(0)
    os.waitpid(child, 0)
    assert convert(pool, "lingering") == first
    pool.close()


def test_a_fork_does_not_keep_a_worker_alive(start):
    script = ASK + "\nimport os, signal\nif child := os.fork(): print(child, flush=True)"
    script += "\nsignal.pause()"
    caller, noted = start("fine", "600", script=script)
    child = int(caller.stdout.readline())
    caller.kill()
    until(lambda: gone(noted), "worker and folder are gone")
    assert runs(child)


@pytest.mark.nightly(part="processes")
def test_a_worker_ends_itself_when_its_caller_sleeps(start):
    caller, noted = start("sleeps", "4")
    caller.send_signal(signal.SIGSTOP)
    until(lambda: not runs(noted["worker"]), "the worker is gone")
    caller.send_signal(signal.SIGCONT)
    _, talk = caller.communicate()
    assert "longer than 4 s" in talk
    until(lambda: gone(noted), "its folder is gone")


def test_a_time_limit_ends_what_the_worker_started(home):
    pool, heard = WorkerPool(), []
    with (
        progress.listening(heard.append),
        pytest.raises(ConversionError, match="longer than 5 s"),
    ):
        convert(pool, "sleeps child says", timeout_s=5.0)
    noted = json.loads(next(stage for stage in heard if stage.startswith("{")))
    until(lambda: gone(noted), "worker, child and folder are gone")


COMMAND = "import sys; from dippm.cli.app import main; sys.argv[0] = 'dippm'; main()"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_says_so(home, start, number):
    package = home / "lingering-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: lingering\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[dippm.frontends]\nx = lingering_frontend:NAME\n")
    model = home / "lingering sleeps child"
    model.write_text("a model")
    caller, noted = start("predict", str(model), script=COMMAND)
    caller.send_signal(number)
    caller.communicate()
    assert caller.returncode == 128 + number
    assert gone(noted)  # in order: before the command ended


def convert(pool, mood, *, timeout_s=120.0):
    request = {"source": mood, "inputs": {"shapes": {}, "batch_axes": {}, "values": {}}}
    with pool.borrow("lingering_frontend", 2048) as worker:
        return worker.convert({**request, "trust": False}, timeout_s=timeout_s)


def test_stages_of_the_worker_reach_who_listens(home):
    pool, heard = WorkerPool(), []
    with progress.listening(heard.append):
        convert(pool, "lingering stages")
    pool.close()
    if heard[0] == "compiling libraries":  # of the first process of all
        del heard[0]
    assert heard[0] == "importing libraries"
    assert "writing" in heard
    counted = [stage for stage in heard if stage.startswith("operator")]
    assert 1 <= len(counted) < 2000


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("-inf"), "60", None, True])
def test_time_limits_that_are_none(timeout_s):
    with pytest.raises(ConditionsError, match="time limit") as caught:
        frontends.load("model.onnx", timeout_s=timeout_s)
    assert "timeout" in caught.value.hint


@pytest.mark.parametrize("memory_limit_mb", [0, -1, 63, 1.5, float("inf"), None, True])
def test_memory_limits_that_are_none(memory_limit_mb):
    with pytest.raises(ConditionsError, match="memory limit") as caught:
        frontends.load("model.onnx", memory_limit_mb=memory_limit_mb)
    assert "64" in caught.value.hint


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300])
def test_no_time_limit(home, timeout_s):
    pool = WorkerPool()
    assert convert(pool, "lingering", timeout_s=timeout_s).operators
    pool.close()


def test_a_memory_limit_above_every_machine(home):
    pool = WorkerPool()
    with pool.borrow("lingering_frontend", 10**15) as worker:
        request = {"source": "x", "inputs": {"shapes": {}, "batch_axes": {}, "values": {}}}
        assert worker.convert({**request, "trust": False}).operators
    pool.close()
