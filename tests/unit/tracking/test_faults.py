"""Nothing that happens to a recording reaches the command; little that was seen is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dippm.errors import MeasurementError
from dippm.measure.sampler_file import read
from dippm.runs.store.folder import read_folder
from tests.unit.tracking.commands import (
    START,
    alive,
    ended,
    environment,
    folder,
    line_of,
    run,
    sampler_of,
    samples,
    start,
    ticks,
    until,
    words,
)

WAITS = "echo $$; read x; echo end $x; exit 4"


def waiting(spool, **given):
    process = start(spool, "sh", "-c", WAITS, stdin=-1, given=given)
    return process, int(line_of(process))


def test_the_sampler_is_killed(tmp_path):
    process, _ = waiting(tmp_path, hz=100)
    path = folder(tmp_path)
    os.kill(sampler_of(path), signal.SIGKILL)
    second = path / "samples-2.dippm"
    until(lambda: ticks(second) > 3, "a second one")
    out, err = process.communicate(b"\n")
    assert (out, process.returncode) == (b"end\n", 4)
    recorded = ended(tmp_path)
    first, last = samples(recorded)
    assert first.end is None
    assert last.end["end"] == "the watched process has ended"
    gap_ns = last.series["tree"].time_ns[0] - first.series["tree"].time_ns[-1]
    assert gap_ns > 0
    assert recorded.start.tags["trouble"] == "the sampler was killed"
    assert b"the sampler was killed" in err


def test_the_sampler_is_killed_again_and_again(tmp_path):
    process, _ = waiting(tmp_path, hz=100)
    path = folder(tmp_path)
    for number in range(1, 5):
        file = path / f"samples-{number}.dippm"
        until(lambda file=file: ticks(file), f"sampler {number}")
        os.kill(int(read(file).header["own_pid"]), signal.SIGKILL)
    out, _ = process.communicate(b"x\n")
    assert (out, process.returncode) == (b"end x\n", 4)
    assert ended(tmp_path).end.status == "failed"


def test_the_runner_is_killed(tmp_path):
    process, pid = waiting(tmp_path, hz=100)
    path = folder(tmp_path)
    sampler_of(path)
    process.kill()
    process.wait()
    seen = ticks(path / "samples-1.dippm")
    file = path / "samples-1.dippm"
    until(lambda: ticks(file) > seen + 100, "further samples")
    assert alive(pid)
    assert not (path / "end.json").exists()
    out, _ = process.communicate(b"x\n")
    assert out == b"end x\n"
    recorded = ended(tmp_path)
    assert recorded.end.status == "lost"
    assert samples(recorded)[0].end["end"] == "the watched process has ended"


def test_the_command_is_killed(tmp_path):
    process, pid = waiting(tmp_path)
    sampler_of(folder(tmp_path))
    os.kill(pid, signal.SIGKILL)
    assert process.wait(60) == 137
    recorded = ended(tmp_path)
    assert (recorded.end.status, recorded.end.exit_code) == ("failed", -9)
    assert samples(recorded)[0].end is not None


def test_everything_is_killed_at_once(tmp_path):
    process, pid = waiting(tmp_path, hz=100)
    path = folder(tmp_path)
    sampler = sampler_of(path)
    file = path / "samples-1.dippm"
    until(lambda: ticks(file) > 60, "samples")
    known = ticks(file)
    for number in (sampler, process.pid, pid):
        os.kill(number, signal.SIGKILL)
    process.wait()
    assert ticks(file) >= known
    assert read(file).damaged_bytes == 0
    assert not (path / "end.json").exists()  # whoever attaches it next marks it as lost


def test_a_spool_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    answer = run(tmp_path / "file" / "spool", "sh", "-c", "cat; exit 6", input=b"through")
    assert (answer.returncode, answer.stdout) == (6, b"through")
    assert b"dippm: not everything of this run was recorded: NotADirectoryError" in answer.stderr


def test_a_disk_that_is_full(tmp_path):
    """In a file system of 64 kB, which fills up while the command runs."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=64k none {disk} && "$@"', "sh"]
    if subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    code = f"""
import dippm, os
for n in range(2000):
    with dippm.span("fills the disk"): pass
try:
    with open({str(disk / "own")!r}, "wb") as file: file.write(bytes(2**17))
except OSError: pass
for n in range(2000):
    with dippm.span("finds it full"): pass
os.remove({str(disk / "own")!r})
print("done")
raise SystemExit(7)
"""
    command = words(sys.executable, "-c", code, hz=100)
    answer = subprocess.run(
        [*mount, *command], env=environment(disk), capture_output=True, timeout=120
    )
    assert (answer.returncode, answer.stdout) == (7, b"done\n")
    assert b"No space left on device" in answer.stderr
    assert b"Traceback" not in answer.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1"])
def test_a_signal_reaches_the_command_once(tmp_path, name):
    code = f"""
import signal, time
seen = []
signal.signal(signal.{name}, lambda *_: seen.append(1))
print("ready", flush=True)
while not seen: time.sleep(0.01)  # a pause would miss a signal that comes just before it
time.sleep(0.3)
print(len(seen), flush=True)
raise SystemExit(8)
"""
    process = start(tmp_path, sys.executable, "-c", code)
    assert line_of(process) == "ready"
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == (b"1\n", 8)
    expected = "failed" if name == "SIGUSR1" else "interrupted"
    assert ended(tmp_path).end.status == expected


def test_a_signal_that_nobody_catches_reaches_the_whole_group(tmp_path):
    process = start(tmp_path, "sh", "-c", "sleep 1000 & echo $!; wait")
    sleeper = int(line_of(process))
    process.terminate()
    assert process.wait(60) == 143
    until(lambda: not alive(sleeper), "the end of the group")
    assert ended(tmp_path).end.exit_code == -15


def test_an_ignored_signal_stays_ignored(tmp_path):
    script = "trap '' HUP; exec \"$@\""
    inner = words("sh", "-c", "kill -HUP $$; kill -HUP $PPID; echo went on")
    answer = subprocess.run(
        ["sh", "-c", script, "sh", *inner],
        env=environment(tmp_path),
        capture_output=True,
        timeout=60,
    )
    assert (answer.returncode, answer.stdout) == (0, b"went on\n")


def test_stop_and_go_on(tmp_path):
    process, pid = waiting(tmp_path)
    sampler = sampler_of(folder(tmp_path))

    def state(number):
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]

    process.send_signal(signal.SIGTSTP)
    until(lambda: state(process.pid) == "T" == state(pid), "both to stop")
    assert state(sampler) in "SRD"
    process.send_signal(signal.SIGCONT)
    until(lambda: state(process.pid) in "SRD" and state(pid) in "SRD", "both to go on")
    out, _ = process.communicate(b"x\n")
    assert (out, process.returncode) == (b"end x\n", 4)


@pytest.mark.parametrize(("ignored", "code"), [("", 124), ("INT", 124), ("INT TERM", 124)])
def test_a_time_limit(tmp_path, ignored, code):
    trap = f"trap '' {ignored}; " if ignored else ""
    shorter = "import dippm.runs.tracking.process_supervisor as f; f.GRACE_S = 1\ngiven ="
    script = START.replace("given =", shorter)
    command = [sys.executable, "-c", script, json.dumps({"timeout_s": 0.5})]
    answer = subprocess.run(
        [*command, "sh", "-c", f"{trap}echo ready; (trap - INT TERM; sleep 1000); sleep 1000"],
        env=environment(tmp_path),
        capture_output=True,
        timeout=60,
    )
    assert answer.returncode == code
    end = ended(tmp_path).end
    assert (end.status, end.error) == ("timeout", "ended after 0.5 s")


DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
end = time.process_time() + 0.5
while time.process_time() < end: pass
print(os.getpid(), flush=True)
if sys.argv[1] == "stays":
    os.close(1); os.close(2)
    time.sleep(1000)
"""


def most_cpu_s(spool: Path) -> float:
    """Return the most CPU time of the tree that the samplers of the only run have read by now."""
    try:
        read_so_far = samples(read_folder(folder(spool)))
    except MeasurementError:  # nothing is written yet
        return 0.0
    return max((v for s in read_so_far for v in s.series["tree"].values["cpu_s"]), default=0.0)


@pytest.mark.parametrize("what", ["stays", "ends"])
def test_a_daemon_is_told(tmp_path, what):
    script = f"{sys.executable} -c '{DAEMON}' {what} | (read x; echo $x; cat)"
    seen = tmp_path.parent / f"{tmp_path.name}-seen"
    process = start(tmp_path, "sh", "-c", f"{script}; until test -e {seen}; do sleep 0.05; done")
    pid = int(line_of(process))
    try:
        until(lambda: most_cpu_s(tmp_path) >= 0.4, "a reading of what the daemon took")
        until(lambda: what == "stays" or not alive(pid), "the end of the daemon")
        seen.touch()
        process.communicate(timeout=60)
        assert process.returncode == 0
        recorded = ended(tmp_path)
        values = {value.name: value.data for value in recorded.values}
        assert values["command.cpu_s"] >= 0.4
        if what == "stays":
            assert values["command.left_cpu_s"] >= 0.4
            assert alive(pid)
            assert f"({pid})" in recorded.start.tags["left_behind"]
        else:
            assert int(recorded.start.tags["daemons"]) >= 1  # its parent left the tree too
            assert values["command.cpu_s"] >= values["command.daemon_cpu_s"] >= 0.5
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_short_processes_leave_no_tick_unmarked(tmp_path):
    """200 short processes a second at 100 Hz: as many readings as ticks, or the rest is marked."""
    code = """
import os, time
end = time.monotonic() + 3
while time.monotonic() < end:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    time.sleep(0.003)
"""
    assert run(tmp_path, sys.executable, "-c", code, given={"hz": 100}).returncode == 0
    (found,) = samples(ended(tmp_path))
    times = found.series["tree"].time_ns
    ticks = (times[-1] - times[0]) / 1e7
    assert len(times) + found.end["missed"] == pytest.approx(ticks, abs=3)
