"""Generated files: written by a command, and checked by the same command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(path: Path, make: Callable[[], str], *, command: str, about: str | None) -> None:
    """Run `--write` and `--check` of a generated file; exit with a message if it is outdated.

    Args:
        path: path of the file.
        make: function that returns its content.
        command: command that regenerates it, for the message.
        about: help text of the command.
    """
    parser = argparse.ArgumentParser(description=about)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", action="store_true")
    choice.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = make()
    if arguments.write:
        path.write_text(text, encoding="utf-8")
    elif not path.is_file() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path} is not up to date: {command} --write")
