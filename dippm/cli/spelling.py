"""Hints in the words of the command line.

Errors are raised below the command line and name Python's arguments: `trust=True`,
`timeout_s=600`. Where the running command has an option for an argument, its hint says `--trust`,
`--timeout-s 600`; an argument that it lacks stays as it is, since only Python has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

_WORDS = re.compile(
    r"""
    (?P<quoted> "[^"]*" | `[^`]*` )                # an example of its own, stays
    | \b(?P<name> [a-z_]+ ) =
      (?P<value> "[^"]*" | '[^']*' | \([^)]*\) | \.\.\.
        | [^\s"'(){};=]*? (?= [.,;:)]* (?: \s | $ ) ) )
    """,
    re.VERBOSE,
)
_BARE = re.compile(r"[\w.,:+-]*")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command: how it is written, and whether it takes no value."""

    word: str
    is_flag: bool


OPTIONS: ContextVar[Mapping[str, Option]] = ContextVar("OPTIONS")
"""The options of the running command, by the name of their argument in Python."""


@contextmanager
def one_command() -> Iterator[None]:
    """Forget the options of a command when it ends: after it, hints are Python's again."""
    token = OPTIONS.set({})
    try:
        yield
    finally:
        OPTIONS.reset(token)


def options_of(command: Any) -> dict[str, Option]:
    """Return the options of a typer command by the name of their argument."""
    return {
        parameter.name: Option(max(parameter.opts, key=len), bool(parameter.is_flag))
        for parameter in command.params
        if parameter.param_type_name == "option"
    }


def on_command_line(text: str) -> str:
    """Return a text with Python's arguments spelled as options of the running command."""
    options = OPTIONS.get({})

    def spelled(match: re.Match[str]) -> str:
        option = options.get(match["name"] or "")
        if option is None:
            return match.group()
        value = match["value"]
        if option.is_flag:
            return f"no {option.word}" if value == "False" else option.word
        bare = value.strip("\"'")
        return f"{option.word} {bare if _BARE.fullmatch(bare) else value}".rstrip()

    return _WORDS.sub(spelled, text)
