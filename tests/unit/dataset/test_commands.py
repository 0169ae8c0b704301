"""Commands that are written down somewhere keep their names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.samples import sampled

COMMANDS = (
    "build", "build_collected", "collect", "croissant", "datasheet", "own_build", "plan",
    "raw_graphs",
)  # fmt: skip


@pytest.mark.parametrize("name", sampled(COMMANDS, pytest.mark.nightly(part="processes")))
def test_a_command_says_what_it_does(name: str) -> None:
    words = [sys.executable, "-m", f"dataset.{name}", "--help"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage:")
