"""`dippm.track`: a block is a run, and costs the program next to nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from dippm.runs.store.folder import read_folder
from tests.unit.tracking.commands import (
    PATIENCE_S,
    ended,
    environment,
    folder,
    line_of,
    sampler_of,
    samples,
    ticks,
    until,
)

HEAVY = "numpy torch pydantic rich typer mlflow pandas pyarrow subprocess sqlalchemy".split()


def program(spool, code, **options):
    pipes = {"stdin": -1, "stdout": -1, "stderr": -1, "env": environment(spool)}
    return subprocess.Popen([sys.executable, "-c", code], **{**pipes, **options})


def finish(spool, code, given=b""):
    process = program(spool, code)
    out, err = process.communicate(given, timeout=PATIENCE_S)
    return process.returncode, out.decode(), err.decode()


def test_a_block_is_a_run(tmp_path):
    code = """
import dippm, os, time
with dippm.track("training", experiment="e", hz=100, params={"lr": 1}, tags={"a": 2}) as run:
    with run.span("epoch"):
        run.log("loss", 0.5, step=1)
        end = time.process_time() + 0.3
        while time.process_time() < end: pass
with dippm.span("after"): pass
assert dippm.runs.tracking.current() is None
print(run.uuid)
"""
    code_, out, err = finish(tmp_path, code)
    assert (code_, err) == (0, "")
    recorded = ended(tmp_path)
    begun = recorded.start
    assert (begun.uuid, begun.name, begun.experiment) == (out.strip(), "training", "e")
    assert (dict(begun.params), dict(begun.tags)) == ({"lr": "1"}, {"a": "2"})
    assert recorded.end.status == "finished"
    assert [span.name for span in recorded.spans] == ["epoch"]
    assert recorded.values[0].span == recorded.spans[0].id
    (found,) = samples(recorded)
    assert found.header["pid"] == begun.pid
    assert found.end["end"] == "SIGTERM"
    until(lambda: "packages" in read_folder(recorded.path).start.environment, "packages")


def test_an_exception_fails_the_run_and_goes_on(tmp_path):
    code = """
import dippm
try:
    with dippm.track(): raise KeyError("mine")
except KeyError as error: print(error)
"""
    assert finish(tmp_path, code) == (0, "'mine'\n", "")
    end = ended(tmp_path).end
    assert (end.status, end.error) == ("failed", "KeyError: 'mine'")


def test_nothing_heavy_is_loaded(tmp_path):
    code = """
import sys
before = set(sys.modules)
import dippm
with dippm.track("x"), dippm.span("y"): pass
print(*set(sys.modules) - before)
"""
    code_, out, _ = finish(tmp_path, code)
    assert code_ == 0
    loaded = {name.partition(".")[0] for name in out.split()}
    assert "dippm" in loaded
    assert not loaded.intersection(HEAVY)


def test_memory_inside_of_the_program(tmp_path):
    code = """
def memory_mb():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Pss:"): return int(line.split()[1]) / 1024
memory_mb()
before = memory_mb()
import dippm
with dippm.track("x"), dippm.span("y"): after = memory_mb()
print(after - before)
"""
    code_, out, _ = finish(tmp_path, code)
    assert code_ == 0
    assert float(out) <= 10


def test_the_program_has_no_child_to_wait_for(tmp_path):
    code = """
import dippm, os
with dippm.track("x"):
    try: print(os.wait())
    except ChildProcessError: print("none")
"""
    assert finish(tmp_path, code)[:2] == (0, "none\n")


def test_descriptors_and_threads_are_let_go(tmp_path):
    code = """
import dippm, os, threading
def count(): return len(os.listdir("/proc/self/fd"))
with dippm.track("x", metrics=()): pass
before = count()
for _ in range(3):
    with dippm.track("x"): assert threading.active_count() == 1
print(count() - before)
"""
    assert finish(tmp_path, code)[:2] == (0, "0\n")


def test_a_spool_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    code = """
import dippm
with dippm.track("x") as run:
    with run.span("y"): run.log("z", 1)
    run.tag("a"); run.params({"b": 1})
print(run.recorded, run.trouble.partition(":")[0])
"""
    code_, out, err = finish(tmp_path / "file", code)
    assert (code_, out) == (0, "False NotADirectoryError\n")
    assert err.startswith("dippm: this run is not recorded: NotADirectoryError")
    assert err.count("\n") == 1


@pytest.mark.parametrize("who", ["program", "sampler"])
def test_killed(tmp_path, who):
    code = """
import dippm, sys
with dippm.track("x", hz=100):
    with dippm.span("in it"):
        print("ready", flush=True); sys.stdin.readline()
print("end", flush=True)
"""
    process = program(tmp_path, code)
    assert line_of(process) == "ready"
    path = folder(tmp_path)
    sampler = sampler_of(path)
    file = path / "samples-1.dippm"
    until(lambda: ticks(file) > 10, "samples")
    os.kill(process.pid if who == "program" else sampler, signal.SIGKILL)
    out, err = process.communicate(b"\n", timeout=PATIENCE_S)
    recorded = ended(tmp_path)
    if who == "program":
        assert recorded.end.status == "lost"
        assert recorded.spans[0].status == "open"
    else:
        assert (process.returncode, out, err) == (0, b"end\n", b"")
        assert recorded.end.status == "finished"
        assert recorded.start.tags["trouble"] == "the sampler was killed"
    assert len(samples(recorded)[0].series["tree"].time_ns) > 10


def test_a_forked_child_does_not_end_the_run(tmp_path):
    code = """
import dippm, os, sys
with dippm.track("x") as run:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        run.tag("after the child")
    else:
        with dippm.span("in the child"): pass
"""
    assert finish(tmp_path, code) == (0, "", "")
    recorded = ended(tmp_path)
    assert "after the child" in recorded.start.tags
    assert len(recorded.spans) == 1


def test_a_block_inside_of_another(tmp_path):
    code = """
import dippm
with dippm.track("outer", metrics=()) as outer:
    with dippm.track("inner", metrics=()) as inner:
        with dippm.span("first"): pass
    with dippm.span("second"): pass
"""
    assert finish(tmp_path, code)[0] == 0
    found = {r.start.name: r for r in map(read_folder, tmp_path.iterdir())}
    assert [span.name for span in found["outer"].spans] == ["second"]
    assert [span.name for span in found["inner"].spans] == ["first"]


def test_modules_beside_the_program_shadow_nothing_of_ours(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("select", "struct", "json", "signal"):
        (here / f"{name}.py").write_text("raise SystemExit('shadowed')")
    code = "import sys; sys.path.pop(0)\nimport dippm, os\nwith dippm.track('x'): pass\n"
    process = program(tmp_path / "spool", code, cwd=here)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert samples(ended(tmp_path / "spool"))[0].end is not None


def test_a_wrong_source_is_said_before_anything_starts(tmp_path):
    code = "import dippm\nwith dippm.track(metrics=['tre']): print('entered')"
    code_, out, err = finish(tmp_path, code)
    assert (code_, out) == (1, "")
    assert "Did you mean tree" in err
    assert not list(tmp_path.iterdir())
