"""The examples of docs/tracking/co-location.md run, and print what they say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.runs.colocation import Sharing
from tests.unit.colocation.machine import ROOT
from tests.unit.colocation.test_slowdown import SHARED, SOLO, kept

TEXT = (ROOT / "docs" / "tracking" / "co-location.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", TEXT, re.DOTALL)
SESSION = re.search(r"```console\n\$ dippm (.*?)\n(.*?)```", TEXT, re.DOTALL)


def program(machine, number):
    code, said = PROGRAMS[number]
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=machine.environment,
        cwd=machine.tmp,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout, said


@pytest.mark.parametrize(("number", "answers"), [(0, "mig_mode 1"), (1, "mig_mode 0")])
def test_a_program_prints_what_it_says(machine, number, answers):
    machine.say(answers)
    printed, said = program(machine, number)
    assert printed == said
    assert (machine.layout, machine.mps()) == ([], [])


def test_the_program_that_undoes_does(machine):
    machine.say("mig_mode 1")
    machine.journal = machine.tmp / "journal"
    process = machine.seated('("0",), "3g.20gb"')
    process.kill()
    process.communicate()
    printed, _ = program(machine, 2)
    assert printed.endswith("was destroyed\n")
    assert machine.layout == []


def test_the_session_prints_what_it_says(store_file, tmp_path, monkeypatch):
    monkeypatch.setenv("DIPPM_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store_file}")
    words, said = SESSION.groups()
    shared, other = (
        name + "0" * 24 for name in re.search(r"beside (\w{8}) and (\w{8})", said).groups()
    )
    assert shared.startswith(shlex.split(words)[1])
    for name, at_s, ms, tags, own in (
        ("0_A", 100, 20.0, SHARED, shared),
        ("0_B", 100, 20.0, SHARED, other),
        ("solo", 200, 10.0, SOLO, None),
    ):
        kept(tmp_path / "spool", name, at_s, ms, tags, uuid=own)
    answer = CliRunner().invoke(app, shlex.split(words))
    assert answer.stdout == said


def test_every_word_of_the_table_is_one():
    table = TEXT[TEXT.index("| `Collocation` |") : TEXT.index("A slice that")]
    words = re.findall(r"`([^`]+)`", table.replace("`Collocation`", ""))
    ways = [str(Sharing.parse(word)) for word in words if not word.startswith(("nvidia", "dippm"))]
    assert ways == ["", "mps", "mps:50%", "mps:4096mb", "mps:50%:4096mb", "3g.20gb"]


def test_there_are_examples():
    assert len(PROGRAMS) == 3
    assert "No GPU has run this yet" in TEXT
