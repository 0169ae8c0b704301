"""The examples of docs/tracking/listeners.md run, and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from dippm.runs.tracking.listeners import LISTENERS
from tests.samples import sampled
from tests.unit.tracking.commands import ROOT, environment
from tests.unit.tracking.test_docs import SHELL

TEXT = (ROOT / "docs" / "tracking" / "listeners.md").read_text(encoding="utf-8")
BLOCKS = {
    kind: re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL) for kind in ("python", "console")
}
TRAIN = """
import time
from dippm import span
for _ in range(2):
    with span("forward"):
        time.sleep(0.05)
print("trained")
"""
LOOP = """
import torch
from dippm.runs.tracking import iterations
print(sum(1 for _ in iterations(range(4))), "steps")
"""


@pytest.mark.parametrize(
    "number", sampled(range(len(BLOCKS["python"])), pytest.mark.nightly(part="processes"))
)
def test_a_program_runs(tmp_path, number):
    (tmp_path / "program.py").write_text(BLOCKS["python"][number])
    answer = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(tmp_path / "spool"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("number", range(len(BLOCKS["console"])))
def test_a_session_prints_what_it_says(tmp_path, number, store_file):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    held = environment(tmp_path / "spool")
    held["PATH"] = f"{python.parent}:{held['PATH']}"
    lines = BLOCKS["console"][number].splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    answer = subprocess.run(
        ["bash", "-c", SHELL + "\n".join(commands)],
        cwd=tmp_path,
        env={**held, "MLFLOW_TRACKING_URI": f"sqlite:///{store_file}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert answer.stdout.splitlines() == [line for line in lines if not line.startswith("$ ")]
    assert list((tmp_path / "spool").glob("*/end.json"))


def test_every_listener_and_metric_is_on_the_page():
    table = TEXT[TEXT.index("| listener |") :].split("\n\n")[0]
    for name, listener in LISTENERS.items():
        (row,) = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
        for group in listener.sources:
            assert all(f"`{source}`" in row for source in group)
        for metric in listener.metrics:
            label = metric.name.rpartition(" - ")[2].removesuffix(" GB").removesuffix(" {}")
            words = label.replace("/s", "").split()
            assert all(word in row for word in words), metric.name


def test_there_are_examples():
    assert len(BLOCKS["python"]) == 4
    assert len(BLOCKS["console"]) == 3
