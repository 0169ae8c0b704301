"""The examples of docs/tracking/runs.md run, and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.samples import sampled
from tests.unit.tracking.commands import ROOT, environment

TEXT = (ROOT / "docs" / "tracking" / "runs.md").read_text(encoding="utf-8")
BLOCKS = {
    kind: re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL) for kind in ("python", "console")
}
SHELL = f'''
dippm() {{ "{sys.executable}" -m dippm "$@"; }}
python() {{ "{sys.executable}" "$@"; }}
'''


@pytest.mark.parametrize(
    "number", sampled(range(len(BLOCKS["python"])), pytest.mark.nightly(part="processes"))
)
def test_a_program_runs(tmp_path, number):
    program = tmp_path / "program.py"
    program.write_text(BLOCKS["python"][number])
    answer = subprocess.run(
        [sys.executable, program],
        env=environment(tmp_path / "spool"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert list((tmp_path / "spool").glob("*/end.json"))


@pytest.mark.parametrize("number", range(len(BLOCKS["console"])))
def test_a_session_prints_what_it_says(tmp_path, number):
    (tmp_path / "numbers.txt").write_text("10\n1\n2\n")
    lines = BLOCKS["console"][number].splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    answer = subprocess.run(
        ["bash", "-c", SHELL + "\n".join(commands)],
        cwd=tmp_path,
        env=environment(tmp_path / "spool"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert answer.stdout.splitlines() == [line for line in lines if not line.startswith("$ ")]
    assert answer.stderr == ""
    assert len(list((tmp_path / "spool").glob("*/end.json"))) == len(commands)


def test_there_are_examples():
    assert len(BLOCKS["python"]) == 4
    assert len(BLOCKS["console"]) == 2
