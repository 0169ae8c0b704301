"""The process tree, on real processes that fork, end unseen, and are killed."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

import pytest

from dippm.measure.readings import AbsentSource
from dippm.measure.sources import tree as module
from dippm.measure.sources.registry import open_source
from dippm.measure.sources.tree import ENDED, TreeSource, descendants

BURN = "import time; e = time.process_time() + {}\nwhile time.process_time() < e: pass"
SPEAK = "print('ready', flush=True); input()\n"


@pytest.fixture
def run():
    """Start Python code that prints "ready" and waits for a line; kill it and its group later."""
    started = []

    def start(code, *, ready=True):
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(child)
        if ready:
            assert child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.stdin.close()
        child.stdout.close()
        child.wait()


def go(child):
    child.stdin.write("\n")
    child.stdin.flush()


def test_children_that_ended_between_two_readings_keep_their_cpu_seconds(run):
    burn = BURN.format(0.15)
    child = run(
        "import subprocess, sys, os, time\n" + SPEAK
        + f"for _ in range(3): subprocess.run([sys.executable, '-S', '-c', {burn!r}])\n"
        + "print(sum(os.times()[:4]), flush=True); input()"
    )  # fmt: skip
    source = TreeSource(child.pid)
    before = source.read()
    go(child)
    used_s = float(child.stdout.readline())
    after = source.read()
    assert used_s >= 0.45
    assert after.values["cpu_s"] == pytest.approx(used_s, abs=0.06)
    assert before.values["cpu_s"] < 0.2
    assert after.values["lost_processes"] == 0
    source.close()


def test_cpu_seconds_never_fall_while_processes_are_killed(run):
    burn = BURN.format(30)
    child = run(
        "import subprocess, sys, os\n"
        + f"many = [subprocess.Popen([sys.executable, '-S', '-c', {burn!r}]) for _ in range(6)]\n"
        + "print('ready', flush=True)\n"
        + "for one in many: input(); one.kill(); one.wait(); print('killed', flush=True)\n"
        + "print(sum(os.times()[:4]), flush=True); input()"
    )
    source = TreeSource(child.pid)
    seen = [source.read()]
    for _ in range(6):
        time.sleep(0.05)
        seen.append(source.read())
        go(child)
        assert child.stdout.readline() == "killed\n"
        seen.append(source.read())
    used_s = float(child.stdout.readline())
    cpu = [reading.values["cpu_s"] for reading in seen]
    assert cpu == sorted(cpu)
    assert seen[0].values["processes"] == 7
    assert seen[-1].values["processes"] == 1
    assert source.read().values["cpu_s"] == pytest.approx(used_s, abs=0.15)
    assert seen[-1].values["lost_processes"] == 0


STORM = """
import os, random, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def spawn(depth):
    pid = os.fork()
    if pid: return pid
    burn(random.random() * 0.02)
    children = [spawn(depth - 1) for _ in range(random.randint(0, 2))] if depth else []
    if random.random() < 0.5: time.sleep(random.random() * 0.03)
    for child in children: os.waitpid(child, 0)
    os._exit(0)
print('ready', flush=True)
input()
alive = []
for number in range(40):
    random.seed(number)
    alive.append(spawn(2))
    if len(alive) > 4: os.waitpid(alive.pop(0), 0)
for child in alive: os.waitpid(child, 0)
print(sum(os.times()[:4]), flush=True)
input()
"""


@pytest.mark.parametrize("hz", [15, 300])
def test_a_storm_of_processes_is_counted_once(run, hz):
    child = run(STORM)
    source = TreeSource(child.pid)
    cpu = [source.read().values["cpu_s"]]
    go(child)
    while not select.select([child.stdout], [], [], 1 / hz)[0]:
        cpu.append(source.read().values["cpu_s"])
    used_s = float(child.stdout.readline())
    source.look_anew()
    last = source.read().values
    assert cpu == sorted(cpu)
    assert last["cpu_s"] == pytest.approx(used_s, abs=0.08)
    assert (last["processes"], last["lost_processes"]) == (1, 0)


def test_a_daemon_stays_in_the_tree_and_is_flagged_when_it_ends(run):
    daemon = (
        "import os, time\n"
        "middle = os.fork()\n"
        "if middle == 0:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        e = time.process_time() + 0.3\n"
        "        while time.process_time() < e: pass\n"
        "        print(os.getpid(), flush=True)\n"
        "        time.sleep(60)\n"
        "    time.sleep(0.3)\n"
        "    os._exit(0)\n"
        "print('ready', flush=True)\n"
        "os.waitpid(middle, 0)\n"
        "input()"
    )
    child = run(daemon)
    source = TreeSource(child.pid)
    while source.read().values["processes"] < 3:
        pass
    pid = int(child.stdout.readline())
    while len(source.pids) > 2:  # until the one in the middle has ended
        kept = source.read()
    assert set(source.pids) == {child.pid, pid}
    assert kept.values["cpu_s"] >= 0.3
    os.kill(pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}/task/{pid}/stat") and pid in source.pids:
        source.read()
    after = source.read()
    assert after.values["processes"] == 1
    assert after.values["lost_processes"] == 1
    assert after.values["cpu_s"] >= kept.values["cpu_s"]


def test_children_that_nobody_waits_for_are_not_forgotten(run):
    burn = BURN.format(0.2) + "\nprint('burnt', flush=True); time.sleep(60)"
    child = run(
        "import subprocess, sys, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        + f"one = subprocess.Popen([sys.executable, '-S', '-c', {burn!r}])\n"
        + SPEAK + "one.kill()\nprint('killed', flush=True)\ninput()"
    )  # fmt: skip
    assert child.stdout.readline() == "burnt\n"
    source = TreeSource(child.pid)
    before = source.read()
    assert before.values["processes"] == 2
    go(child)
    assert child.stdout.readline() == "killed\n"
    while len(source.pids) > 1:
        after = source.read()
    assert after.values["cpu_s"] >= before.values["cpu_s"] >= 0.2
    assert after.values["lost_processes"] == 1


def test_the_end_of_the_tree_leaves_counters_and_says_why_gauges_are_absent(run):
    child = run(BURN.format(0.2) + "\n" + SPEAK)
    source = TreeSource(child.pid)
    source.read()
    go(child)
    child.wait()
    after = source.read()
    assert after.values["cpu_s"] >= 0.2
    assert after.absent["rss_mb"] == after.absent["processes"] == ENDED
    assert set(after.values) | set(after.absent) == {q.name for q in source.quantities}
    source.close()


def test_threads_and_their_children_are_seen(run):
    child = run(
        "import subprocess, sys, threading, time\n"
        "def work(): subprocess.run([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "for _ in range(3): threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.3); " + SPEAK
    )
    source = TreeSource(child.pid)
    source.read()
    readings = source.read()
    assert readings.values["processes"] == 4
    assert readings.values["threads"] == 7
    assert set(source.pids) == descendants(child.pid)


def test_kernels_that_do_not_list_children_are_searched(run, monkeypatch):
    def refuse(self):
        raise FileNotFoundError(f"/proc/{self.pid}/task/{self.pid}/children")

    monkeypatch.setattr(module.Process, "children", refuse)
    sleep = "import time; time.sleep(60)"
    child = run(
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-S', '-c', {sleep!r}])\n" + SPEAK
    )
    source = TreeSource(child.pid)
    source.read()
    time.sleep(0.01)
    deadline = time.monotonic() + 10
    while source.read().values["processes"] < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(source.pids) == 2


def test_a_process_can_be_left_out(run):
    child = run(SPEAK)
    everyone, others = TreeSource(os.getpid()), TreeSource(os.getpid(), exclude={child.pid})
    everyone.read(), others.read()
    assert child.pid in everyone.pids
    assert child.pid not in others.pids


def test_memory_and_io_are_those_of_the_kernel(run, tmp_path):
    child = run(
        "import os\nheld = bytearray(64 << 20)\n"
        f"file = os.open({str(tmp_path / 'written')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "os.write(file, bytes(8 << 20)); os.fsync(file)\n" + SPEAK
    )
    readings = TreeSource(child.pid).read()
    with open(f"/proc/{child.pid}/io") as file:
        written = next(line for line in file if line.startswith("write_bytes"))
    assert readings.values["written_mb"] == pytest.approx(int(written.split()[1]) / 2**20)
    with open(f"/proc/{child.pid}/statm") as file:
        rss_mb = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    assert readings.values["rss_mb"] == pytest.approx(rss_mb, abs=1)
    assert 64 < readings.values["pss_mb"] < rss_mb


def test_page_tables_of_a_large_tree_are_not_walked_at_once(run, monkeypatch):
    child = run("held = bytearray(64 << 20)\n" + SPEAK)
    monkeypatch.setattr(module, "PSS_AT_ONCE_MB", 32.0)
    source = TreeSource(child.pid)
    readings = source.read()
    assert "pss_mb" not in readings.values
    assert readings.absent["pss_mb"] == module.PSS_LATER
    monkeypatch.setattr(module, "PSS_NS_PER_MB", 0)  # as if the minutes had passed
    source.look_anew()
    readings = source.read()
    assert readings.values["pss_mb"] > 64
    assert "pss_mb" not in readings.absent


def test_percent_is_of_one_core(run):
    child = run("print('ready', flush=True)\n" + BURN.format(5))
    source = TreeSource(child.pid)
    first = source.read()
    assert "cpu_percent" in first.absent
    time.sleep(0.7)
    last = source.read()
    used_s = last.values["cpu_s"] - first.values["cpu_s"]
    passed_s = (last.time_ns - first.time_ns) / 1e9
    assert last.values["cpu_percent"] == pytest.approx(100 * used_s / passed_s)
    assert last.values["cpu_percent"] > 5


def test_no_such_process_is_a_reason(run):
    child = run("pass", ready=False)
    child.wait()
    source = open_source("tree", pid=child.pid)
    assert isinstance(source, AbsentSource)
    assert "cannot be read" in source.read().absent["cpu_s"]


def test_a_tree_too_large_to_follow_gives_no_figure(run):
    sleep = "import time; time.sleep(60)"
    child = run(
        "import subprocess, sys\n"
        f"for _ in range(6): subprocess.Popen([sys.executable, '-S', '-c', {sleep!r}])\n" + SPEAK
    )
    code = (
        "import resource, sys\n"
        "from dippm.measure.sources.tree import TreeSource\n"
        "source = TreeSource(int(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))\n"
        "for _ in range(2): readings = source.read()\n"
        "print(len(readings.values), readings.absent['rss_mb'], readings.absent['cpu_s'])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(child.pid)], capture_output=True, text=True, timeout=60
    )
    assert told.stdout.startswith("0 more processes"), told.stderr
    assert TreeSource(child.pid).read().values["processes"] == 7


def test_psutil_sees_the_same_tree(run):
    from dippm.measure.sources.tree import open_psutil_tree

    burn = BURN.format(0.2)
    child = run(
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-S', '-c', {burn!r}"
        " + '\\nprint(1, flush=True); time.sleep(60)'])\n" + SPEAK
    )
    assert child.stdout.readline() == "1\n"
    ours, theirs = TreeSource(child.pid).read(), open_psutil_tree(child.pid).read()
    for name in ("processes", "threads"):
        assert theirs.values[name] == ours.values[name]
    assert theirs.values["cpu_s"] == pytest.approx(ours.values["cpu_s"], abs=0.05)
    assert theirs.values["rss_mb"] == pytest.approx(ours.values["rss_mb"], rel=0.05)


def test_a_process_that_ended_and_was_not_waited_for_has_no_memory(run):
    """Its CPU seconds are whole; 0 MiB would be an invented figure."""
    child = run(SPEAK)
    source = TreeSource(child.pid)
    go(child)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    first = source.read()
    assert first.values.keys() == {"cpu_s", "lost_processes"}
    assert first.absent["rss_mb"] == ENDED
    assert first.absent["peak_rss_mb"] == first.absent["read_mb"] == module.TOO_LATE


def test_what_was_read_of_a_process_outlives_it(run):
    child = run(SPEAK)
    source = TreeSource(child.pid)
    before = source.read()
    go(child)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    source.look_anew()
    after = source.read()
    assert after.values["peak_rss_mb"] == before.values["peak_rss_mb"] > 1
    assert {"rss_mb", "threads", "processes"} <= after.absent.keys()
