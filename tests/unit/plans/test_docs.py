"""The examples of docs/tracking/plans.md run, and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.samples import sampled
from tests.unit.tracking.commands import ROOT

TEXT = (ROOT / "docs" / "tracking" / "plans.md").read_text(encoding="utf-8")
FILES = re.findall(r'```\w+ title="(\S+)"\n(.*?)```', TEXT, re.DOTALL)
SESSIONS = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SHELL = f'''
export COLUMNS=120
dippm() {{ "{sys.executable}" -m dippm "$@"; }}
'''
VARIES = ((r"\b[0-9a-f]{8}\b", "UUID"), (r"\([0-9.]+ s\)", "(SECONDS s)"), (r"  +", "  "))


def settled(line: str) -> str:
    """A line without what is another each time."""
    line = line.replace(sys.executable, "python")
    for pattern, word in VARIES:
        line = re.sub(pattern, word, line.rstrip())
    return line


@pytest.fixture
def made(desk):
    for name, text in FILES:
        desk.script(name, text)
    return desk


@pytest.mark.parametrize(
    "number", sampled(range(len(SESSIONS)), pytest.mark.nightly(part="processes"))
)
def test_a_session_prints_what_it_says(made, number):
    lines = SESSIONS[number].splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    answer = subprocess.run(
        ["bash", "-c", SHELL + "\n".join(commands)],
        cwd=made.folder,
        env=made.environment | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    expected = [settled(line) for line in lines if not line.startswith("$ ")]
    assert [settled(line) for line in answer.stdout.splitlines()] == expected
    assert answer.stderr == ""


def test_the_program_runs(made):
    (program,) = PROGRAMS
    made.script("program.py", program)
    answer = subprocess.run(
        [sys.executable, "program.py"],
        cwd=made.folder,
        env=made.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("FINISHED") == 2


def test_every_test_that_the_page_names_is_there():
    written = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests/unit/plans").glob("*.py")
    )
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 15
    assert not {name for name in named if f"def {name}(" not in written}


def test_there_are_examples():
    assert len(SESSIONS) == 4
    assert len(FILES) == 3
