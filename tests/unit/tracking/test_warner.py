"""A run says while it goes on that it leaves its prediction, and that its memory will not do."""

from __future__ import annotations

import copy
import os
import re
import select
import subprocess
import sys

import pytest

from dippm.measure.readings import Readings
from dippm.runs.store.folder import RunFolder, read_folder
from dippm.runs.store.record import Moment, Span, Start
from dippm.runs.tracking.warner import WARNING, Growth, Warner, memory_left_mb
from tests.unit.tracking import commands
from tests.unit.tracking.test_run_comparison import CPU, PREDICTION

MS = 1_000_000
HOST = {"host_cpu": "AMD EPYC", "host_cores": "2"}
PATIENCE_S = 60


class Told:
    """A run, what its warner says on a pipe, and the tags that it keeps."""

    def __init__(self, root, *, environment=HOST, left_mb=1000.0, **start):
        self.hear, talk = os.pipe()
        given = {"params": {"device": CPU}, "prediction": PREDICTION, **start}
        begun = Start("a" * 32, "run", "tests", Moment(0, 0), **given)
        self.folder = RunFolder.create(begun, root)
        self.folder.settings(environment=environment)
        self.warner = Warner(self.folder.path, talk, lambda: left_mb)

    def steps(self, first: int, count: int, each_ms: float) -> None:
        for step in range(first, first + count):
            at = step * 100 * MS
            self.folder.span(Span(step + 1, "forward", at, at + int(each_ms * MS)))

    def look(self, rss_mb: float = 300.0, at_s: float = 1.0, **more: float) -> str:
        values = {"rss_mb": rss_mb, "processes": 1.0, **more}
        self.warner.look({"tree": Readings(int(at_s * 1e9), values)})
        return os.read(self.hear, 4096).decode() if select.select([self.hear], [], [], 0)[0] else ""

    @property
    def tags(self) -> dict[str, str]:
        return dict(read_folder(self.folder.path).start.tags)


def test_memory_above_its_interval_is_said_once(tmp_path):
    told = Told(tmp_path)
    assert told.look(310) == ""
    assert told.look(400, processes=2.0) == ""  # one process is predicted
    line = told.look(400)
    assert line == "dippm: memory is 400.0 MiB, above the predicted 280.0 – 320.0 MiB\n"
    assert told.tags == {f"{WARNING}memory_mb": line.removeprefix("dippm: ").strip()}
    assert told.look(500) == ""


@pytest.mark.parametrize(("each_ms", "side"), [(30.0, "above"), (1.0, "below"), (12.0, "")])
def test_latency_outside_its_interval_is_said_once(tmp_path, each_ms, side):
    told = Told(tmp_path)
    told.steps(0, 14, each_ms)
    assert told.look() == ""  # 9 steps are too few
    told.steps(14, 6, each_ms)
    assert told.look() == ""
    told.steps(20, 6, each_ms)
    line = told.look()
    assert (f"of the last 21 'forward' is {each_ms:.2f}"[:-3] in line) == bool(side)
    assert side in line
    assert (f"{WARNING}latency_ms" in told.tags) == bool(side)
    told.steps(26, 6, each_ms)
    assert told.look() == ""


def test_of_very_many_steps_the_newest_count(tmp_path):
    told = Told(tmp_path)
    told.steps(0, 5000, 30.0)
    told.look()
    told.steps(5000, 300, 10.0)
    assert told.look() == ""
    told.steps(5300, 300, 30.0)
    told.look()
    told.steps(5600, 300, 30.0)
    assert "of the last 95 'forward' is 30.00 ms" in told.look()


@pytest.mark.parametrize(
    ("given", "environment"),
    [
        ({"params": {"device": "A100-SXM4-40GB"}}, HOST),
        ({"params": {"device": CPU, "batch": "64"}}, HOST),
        ({"prediction": None}, HOST),
        ({}, {}),
    ],
    ids=["another device", "another batch", "no prediction", "not known yet"],
)
def test_nothing_is_said_of_what_was_not_predicted(tmp_path, given, environment):
    told = Told(tmp_path, environment=environment, **given)
    told.steps(0, 30, 30.0)
    assert told.look(400) == ""
    told.steps(30, 30, 30.0)
    assert told.look(400) == ""
    assert not told.tags


def test_what_was_not_known_is_said_later(tmp_path):
    told = Told(tmp_path, environment={})
    assert told.look(400) == ""
    told.folder.settings(environment=HOST)
    assert "above the predicted" in told.look(400)


def test_memory_that_grows_until_it_is_full_is_said(tmp_path):
    told = Told(tmp_path, prediction=None)
    lines = [told.look(100 + 10 * tick, tick) for tick in range(100)]
    assert "".join(lines) == (line := next(filter(None, lines)))
    # The later half of what was seen has to last for 20 s.
    assert lines.index(line) == 40
    assert line == (
        "dippm: memory has grown by 10.00 MiB/s for 20 s and 1,000 MiB are left: at this rate it "
        "is full in 100 s\n"
    )
    assert list(told.tags) == [f"{WARNING}growth-tree"]


@pytest.mark.parametrize(
    ("mb", "left_mb"),
    [
        (lambda tick: 100 + 10 * tick, 100_000.0),
        (lambda tick: 100 + 40 * min(tick, 25), 100.0),
        (lambda tick: 100 if tick < 150 else 2000, 10.0),
        (lambda tick: 500 + tick % 7, 10.0),
    ],
    ids=["enough is left", "loaded at the start", "one step", "a sawtooth"],
)
def test_memory_that_does_not_fill_up_is_no_trouble(tmp_path, mb, left_mb):
    told = Told(tmp_path, prediction=None, left_mb=left_mb)
    assert [told.look(mb(tick), tick) for tick in range(300)] == [""] * 300


def test_memory_of_a_gpu_is_held_against_its_own(tmp_path):
    told = Told(tmp_path, prediction=None)
    for tick in range(100):
        values = {"memory_used_mb": 100.0 * tick, "memory_total_mb": 16_000.0}
        told.warner.look({"nvml:1": Readings(tick * 10**9, values)})
    (tag,) = told.tags.values()
    assert tag.startswith("memory of the GPU (nvml:1) has grown by 100.0 MiB/s")


def test_a_long_run_is_held_in_few_points():
    growth = Growth()
    for tick in range(100_000):
        growth.add(tick / 2, tick / 10)
    assert len(growth._points) < 128
    slope, seconds = growth.even()
    assert slope == pytest.approx(0.2)
    assert 20_000 < seconds < 50_000


def test_what_is_left_is_that_of_the_tightest_group(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    assert memory_left_mb(proc, groups) is None
    (proc / "meminfo").write_text("MemTotal: 4096000 kB\nMemAvailable: 2048000 kB\n")
    assert memory_left_mb(proc, groups) == 2000
    (proc / "self/cgroup").write_text("4:memory:/old\n0::/job/step\n")
    for path, most, used in (("job", 800, 300), ("job/step", "max", 100)):
        group = groups / path
        group.mkdir(parents=True)
        limit = most if most == "max" else most * 2**20
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{used * 2**20}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {50 * 2**20}\n")
    assert memory_left_mb(proc, groups) == 550
    assert memory_left_mb() > 0


WORK = """
import sys, time, dippm
held = bytearray(400 * 2**20)
while not sys.stdin.closed:
    with dippm.span("forward"):
        time.sleep(0.03)
"""


def test_a_command_that_leaves_its_prediction_says_so_while_it_runs(tmp_path):
    given = {"prediction": PREDICTION, "params": {"device": CPU}}
    process = commands.start(tmp_path, sys.executable, "-c", WORK, given=given)
    said = b""
    while said.count(b"dippm: ") < 2:
        ready, _, _ = select.select([process.stderr], [], [], PATIENCE_S)
        assert ready, said
        said += os.read(process.stderr.fileno(), 4096)
    assert process.poll() is None
    process.terminate()
    _, rest = process.communicate(timeout=PATIENCE_S)  # nobody holds its stderr any more
    memory = re.search(rb"memory is (\d+)\.\d MiB, above", said)  # maybe read amid its growth
    assert memory is not None
    assert 320 < int(memory[1]) < 600
    assert b"'forward' is 3" in said
    assert rest == b""
    tags = commands.ended(tmp_path).start.tags
    assert {name for name in tags if name.startswith(WARNING)} == {
        f"{WARNING}memory_mb",
        f"{WARNING}latency_ms",
    }


BLOCK = f"""
import os, time, dippm
held = bytearray(400 * 2**20)
os.dup2(os.open("other", os.O_WRONLY | os.O_CREAT), 5)
with dippm.track("b", prediction={PREDICTION!r}, params={{"device": {CPU!r}}}) as run:
    while b"warning/" not in (run.path / "events.jsonl").read_bytes():
        time.sleep(0.05)
"""


@pytest.mark.parametrize("stderr", ["open", "closed"])
def test_a_block_says_it_too_and_no_other_file_takes_the_line(tmp_path, stderr):
    shell = 'exec "$0" "$@"' + (" 2>&-" if stderr == "closed" else "")
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, "-c", BLOCK],
        env=commands.environment(tmp_path / "spool"),
        capture_output=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert (b"dippm: memory is 4" in done.stderr) == (stderr == "open")
    assert (tmp_path / "other").read_bytes() == b""
    recorded = commands.ended(tmp_path / "spool")
    assert recorded.damaged_lines == 0
    assert f"{WARNING}memory_mb" in recorded.start.tags


def test_a_prediction_that_cannot_be_read_stops_no_samples(tmp_path):
    broken = copy.deepcopy(PREDICTION)
    broken["conditions"] = None
    process = commands.start(tmp_path, sys.executable, "-c", WORK, given={"prediction": broken})
    path = commands.folder(tmp_path)
    commands.until(lambda: (path / "keeper.log").exists() and (path / "keeper.log").read_text(), "")
    at = commands.ticks(path / "samples-1.dippm")
    commands.until(lambda: commands.ticks(path / "samples-1.dippm") > at + 10, "more samples")
    process.terminate()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert said == b""
    assert "warnings: " in (path / "keeper.log").read_text()
