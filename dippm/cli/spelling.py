"""Hints in the words of the command line.

Errors are raised below the command line and name Python's arguments: `trust=True`,
`timeout_s=600`. If the running command has an option for an argument, the hint says `--trust`,
`--timeout-s 600`; other arguments exist only in Python and stay unchanged.
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
    """One option of a command: its spelling, and whether it is a flag."""

    word: str
    is_flag: bool


OPTIONS: ContextVar[Mapping[str, Option]] = ContextVar("OPTIONS")
"""Options of the running command by the name of their Python argument."""


@contextmanager
def one_command() -> Iterator[None]:
    """Forget the options of a command at its end, after which hints are in Python's words again."""
    token = OPTIONS.set({})
    try:
        yield
    finally:
        OPTIONS.reset(token)


def options_of(command: Any) -> dict[str, Option]:
    """Return the options of a typer command by the name of their Python argument."""
    return {
        parameter.name: Option(max(parameter.opts, key=len), bool(parameter.is_flag))
        for parameter in command.params
        if parameter.param_type_name == "option"
    }


def on_command_line(text: str) -> str:
    """Replace Python's arguments in a text by options of the running command."""
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
