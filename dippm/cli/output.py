"""How commands answer: one JSON document or text on stdout, errors with their next step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from dippm.errors import DippmError


def print_json(document: Any) -> None:
    """Write the one document of a command."""
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def errors_reported(*, as_json: bool) -> Iterator[None]:
    """Turn an error of ours into a message, or a document, and exit code 1."""
    try:
        yield
    except DippmError as error:
        if as_json:
            print_json({"error": error.to_dict()})
        else:
            _print_error(error)
        raise typer.Exit(1) from None


def _print_error(error: DippmError) -> None:
    from dippm.report.console import console

    talk = console(sys.stderr)
    talk.print("error:", style="bold red", end=" ")
    talk.print(error.message, markup=False)
    if error.hint:
        talk.print(error.hint, style="dim", markup=False)
