"""How commands answer: one JSON document or text on stdout, errors with their next step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from dippm.base.printable import json_text, legible, printable
from dippm.cli.spelling import on_command_line
from dippm.errors import DippmError, DoesNotFitError

if TYPE_CHECKING:
    from dippm.estimate.prediction import Prediction


SCHEMA_VERSION = 1
"""Of all documents: raised when a key is renamed, removed, or means something else."""


def print_json(name: str, content: Mapping[str, Any]) -> None:
    """Write the one document of a command; it reads back exactly, whatever the encoding.

    Args:
        name: of its schema, a definition of `dippm/schemas.json`.
        content: everything but the name and version of the schema, which stand first.
    """
    document = {"schema": f"dippm.{name}/{SCHEMA_VERSION}", **content}
    text = json_text(document)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=1, allow_nan=False)
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """Write text, which is already printable; `typer.echo` would force UTF-8 on ASCII streams."""
    sys.stdout.write(text + "\n")


@contextmanager
def errors_reported(*, as_json: bool) -> Iterator[None]:
    """Turn an error of ours into a message, or a document, and exit code 1."""
    try:
        yield
    except DippmError as error:
        report_error(error, as_json=as_json)
        raise typer.Exit(1) from None


def report_error(error: DippmError, *, as_json: bool) -> None:
    """Show an error of ours, its hint in the words of the command line."""
    document = error_document(error)
    if as_json:
        print_json("error", {"error": document})
        return
    from dippm.show.report.console import console

    talk = console(sys.stderr)
    talk.print("error:", style="bold red", end=" ")
    talk.print(_indented(document["message"]), markup=False)
    if error.hint:
        talk.print(_indented(document["hint"]), style="dim", markup=False)


def check_fit(predictions: Sequence[Prediction]) -> None:
    """End with exit code 1, and the reason on stderr, unless the memory holds all predictions.

    The answer itself has been written by then.
    """
    misfits = [(p.title, p.misfit) for p in predictions if p.misfit]
    if not misfits:
        return
    (title, misfit), several = misfits[0], len(predictions) > 1
    count = f"{len(misfits)} of {len(predictions)} predictions are not known to fit; the first, "
    error = DoesNotFitError(
        f"{count * several}{title}: {misfit}",
        "Give a smaller batch=..., or a larger GPU; `dippm sweep` finds the largest batch that "
        "fits, `dippm choose` the GPUs that hold one.",
    )
    report_error(error, as_json=False)
    raise typer.Exit(1)


def print_verify(prediction: Prediction | None) -> None:
    """Show last what would check an answer; the line is whole, whatever the width, for copying."""
    from dippm.show.report.console import console, print_text

    if prediction is None:
        return
    if prediction.verify:
        console().print(f" {prediction.verify_line}", markup=False, soft_wrap=True)
    else:
        print_text(f" {prediction.verify_line}")


def print_warnings(warnings: Iterable[str]) -> None:
    """Show warnings on stderr, each once."""
    from dippm.show.report.console import print_text

    for warning in dict.fromkeys(warnings):
        print_text(f" ! {legible(warning)}", sys.stderr)


def print_remarks(remarks: Iterable[str]) -> None:
    """Show lines below a table: warnings, which begin with " !", on stderr."""
    from dippm.show.report.console import print_text

    for remark in remarks:
        if remark.startswith(" !"):
            print_text(legible(remark), sys.stderr)
        else:
            print_text(remark, sys.stdout)


def error_document(error: DippmError) -> dict[str, str]:
    """Return type, message and hint, the hint in the words of the command line."""
    document = error.to_dict()
    return {**document, "hint": on_command_line(document["hint"])}


def _indented(text: str) -> str:
    """Return text whose further lines cannot be taken for lines of ours."""
    return printable(text, keep="\n").replace("\n", "\n  ")
