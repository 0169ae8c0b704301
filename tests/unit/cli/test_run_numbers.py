"""Numbers of commands that run another one, whose own words are left alone."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.cli.commands import _check_numbers
from dippm.errors import RunError
from dippm.runs.tracking.run_config import RunConfig, checked


def test_numbers_before_the_command_are_read_as_people_write_them() -> None:
    for command in ("run", "track"):
        for words in (
            ["--hz", "1_0"],
            ["--hz=1_0"],
            ["--json", "--name", "x", "--timeout-s", "1_0"],
        ):
            answer = CliRunner().invoke(app, [command, *words, "--", sys.executable, "-c", ""])
            assert answer.exit_code == 2, (command, words, answer.output)
            assert "1_0" in answer.output


def test_words_of_the_command_are_its_own() -> None:
    from typer.main import get_command

    for name in ("run", "track"):
        command = get_command(app).commands[name]
        for words in (
            ["--name", "x", "python", "--hz", "1_0"],
            ["--", "python", "--hz", "1_0"],
            ["--json", "--hz", "10", "--", "--hz", "1_0"],
        ):
            _check_numbers(command, words)


@pytest.mark.parametrize("rate", ["1_0", "\u0663"])
def test_rates_of_sources_are_read_alike(rate: str) -> None:
    with pytest.raises(RunError, match="says no rate"):
        checked(RunConfig(command=("true",), metrics=(f"tree@{rate}",)))
