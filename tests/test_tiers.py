"""The tiers of the tests: none is lost, each nightly part has its turn, and long files begin."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import durations

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PARTS = re.search(r"^NIGHTLY := (.*)$", MAKEFILE, re.MULTILINE)[1].split()
RECIPES = dict(re.findall(r"^([\w-]+):[^=\n]*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE))

FAKE_MAKE = """#!/bin/sh
if [ "$*" = "--silent nightly-parts" ]; then echo {parts}; else echo "$*" >> {log}; fi
"""


def test_two_commands_run_everything():
    assert '-m "not nightly"' in RECIPES["test"]
    assert "-m nightly\n" in RECIPES["nightly"]


def test_every_nightly_test_is_of_a_part_that_is_run():
    named = set()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        uses = len(re.findall(r"mark\.nightly\b", text))
        parts = re.findall(r'mark\.nightly\(part="(\w+)"\)', text)
        if path != Path(__file__):
            assert len(parts) == uses, f"{path}: a nightly test names its part"
            named.update(parts)
    assert named == set(PARTS)
    assert len(PARTS) <= 10, "two are run each time, so each at least at every fifth commit"


@pytest.mark.parametrize(("minutes", "each"), [("-1", 2), ("60", len(PARTS))])
def test_five_commits_run_every_part(tmp_path, minutes, each):
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci" / "run"
    script.write_bytes((ROOT / ".ci" / "run").read_bytes())
    tools = tmp_path / "tools"
    tools.mkdir()
    log = tmp_path / "log"
    (tools / "make").write_text(FAKE_MAKE.format(parts=" ".join(PARTS), log=log))
    (tools / "make").chmod(0o755)
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "CI_MINUTES": minutes}
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for _ in range(5):
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "-"], check=True)
        subprocess.run(["bash", script], env=env, check=True)
    runs = [run.split() for run in log.read_text().split("test\n") if run]
    assert [run.count("nightly-part") for run in runs] == [each] * 5
    first_two = {word for run in runs for word in run[1:4:2]}
    assert first_two == {f"PART={part}" for part in PARTS}


def test_unknown_files_begin_then_the_longest():
    known = {"short": {"unmarked": 1.0}, "long": {"unmarked": 1.0, "marked": 60.0}}
    ordered = sorted(["short", "long", "new"], key=lambda path: durations.order(known, path))
    assert ordered == ["new", "long", "short"]


def test_the_quick_tier_is_what_costs_least_and_fits_its_minute():
    most = durations.QUICK_S
    known = {
        "a": {"unmarked": 0.6 * most, "marked": 60.0},
        "b": {"unmarked": 0.5 * most},
        "c": {"unmarked": 0.4 * most},
        "d": {"marked": 1.0},
    }
    assert durations.quick_files(known) == {"b", "c"}


def test_a_record_keeps_what_was_not_run(tmp_path):
    path = tmp_path / "durations.json"
    path.write_text('{"old": {"unmarked": 5.0}, "both": {"marked": 9.0, "unmarked": 1.0}}')
    recorder = durations.Recorder(path, is_worker=False)
    for seconds in (0.25, 0.5):
        cost = ("cost", ["unmarked", seconds])
        report = SimpleNamespace(when="teardown", nodeid="both::test", user_properties=[cost])
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish()
    known = {"unmarked": 0.75, "marked": 9.0}
    assert durations.read(path) == {"old": {"unmarked": 5.0}, "both": known}


def test_recorded_files_exist():
    missing = [path for path in durations.read() if not (ROOT / path).is_file()]
    assert not missing, "make durations"
