"""Output of commands: one JSON document or text on stdout, errors with their next step.

Errors are raised below the command line, and their hints name Python's arguments: `trust=True`,
`timeout_s=600`. If the running command has an option for an argument, the hint says `--trust`,
`--timeout-s 600`; other arguments exist only in Python and stay unchanged.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import typer

from dippm.base.printable import json_text, legible, printable
from dippm.errors import DippmError, DoesNotFitError

if TYPE_CHECKING:
    from pathlib import Path

    from dippm.base.answer import Answer
    from dippm.estimate.prediction import Prediction

SCHEMA_VERSION = 1
"""Version of all documents, raised when a key is renamed, removed, or changes its meaning."""


def print_json(name: str, content: Mapping[str, Any]) -> None:
    """Write the document of a command, which reads back exactly with any encoding.

    Args:
        name: name of its schema, a definition of `dippm/schemas.json`.
        content: everything except name and version of the schema, which come first.
    """
    document = {"schema": f"dippm.{name}/{SCHEMA_VERSION}", **content}
    text = json_text(document)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=1, allow_nan=False)
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """Write printable text; `typer.echo` would force UTF-8 on ASCII streams."""
    sys.stdout.write(text + "\n")


@contextmanager
def errors_reported(*, as_json: bool) -> Iterator[None]:
    """Turn a `DippmError` of the block into a message or a document, and exit with code 1."""
    try:
        yield
    except DippmError as error:
        report_error(error, as_json=as_json)
        raise typer.Exit(1) from None


def report_error(error: DippmError, *, as_json: bool) -> None:
    """Show a `DippmError`, with its hint in the words of the command line."""
    document = error_document(error)
    if as_json:
        print_json("error", {"error": document})
        return
    from dippm.show.report.console import console

    talk = console(sys.stderr)
    talk.print("error:", style="bold red", end=" ")
    talk.print(_indent(document["message"]), markup=False)
    if error.hint:
        talk.print(_indent(document["hint"]), style="dim", markup=False)


def check_fit(predictions: Sequence[Prediction]) -> None:
    """Exit with code 1, and the reason on stderr, unless all predictions fit the memory.

    The answer itself has to be written before.
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


def write_files(
    answer: Answer, *, csv: Path | None = None, html: Path | None = None, **how: Any
) -> None:
    """Write the requested files of an answer, see `show`.

    Raises:
        DippmError: if one cannot be written.
    """
    if csv is not None:
        answer.to_csv(csv)
    if html is not None:
        from dippm.show.report.answers import page_of
        from dippm.show.report.files import write_text

        write_text(html, page_of(answer, **how))


def show(
    name: str,
    answer: Answer,
    *,
    json: bool,
    csv: Path | None = None,
    html: Path | None = None,
    document: Mapping[str, Any] | None = None,
    **how: Any,
) -> None:
    """Write an answer to the requested files, then show it: the last step of every command.

    Args:
        name: name of the schema of its document.
        answer: any answer.
        json: whether to print the document instead of the answer.
        csv: file for its rows.
        html: file for its page.
        document: document in place of `answer.to_dict()`.
        **how: options of the answer's view, see `dippm.show.report.answers`.
    """
    with errors_reported(as_json=json):
        write_files(answer, csv=csv, html=html, **how)
    if json:
        print_json(name, answer.to_dict() if document is None else document)
        return
    from dippm.show.report.answers import StderrLine, parts_of
    from dippm.show.report.console import console, print_text
    from dippm.show.report.tables import TerminalTable

    for part in parts_of(answer, **how):
        if isinstance(part, StderrLine):
            print_text(on_command_line(legible(part)), sys.stderr)
        elif isinstance(part, str):
            print_text(part)
        elif isinstance(part, TerminalTable):
            console().print(part)
        else:
            print_verify(part)


def print_verify(prediction: Prediction, stream: TextIO | None = None) -> None:
    """Show the command that checks an answer, on one line of any length for copying.

    Args:
        prediction: prediction to check.
        stream: stream to write to; None for stdout.
    """
    from dippm.show.report.console import console, print_text

    if prediction.verify:
        text = f" {prediction.verify_line}"
        console(stream).print(text, markup=False, soft_wrap=True)
    else:
        print_text(f" {prediction.verify_line}", stream)


def print_warnings(warnings: Iterable[str]) -> None:
    """Show warnings on stderr, each once."""
    from dippm.show.report.console import print_text

    for warning in dict.fromkeys(warnings):
        print_text(f" ! {legible(warning)}", sys.stderr)


def error_document(error: DippmError) -> dict[str, str]:
    """Return type, message and hint of an error, with Python's arguments replaced by options."""
    document = error.to_dict()
    return {**document, "hint": on_command_line(document["hint"])}


def _indent(text: str) -> str:
    """Indent all but the first line, so that text from outside cannot imitate DIPPM's lines."""
    return printable(text, keep="\n").replace("\n", "\n  ")


def ready_to_plot(html: Path | None) -> None:
    """Check that a page with plots can be made, if one is requested.

    Raises:
        ReportNotInstalledError: if a library of reports is missing.
    """
    if html is not None:
        from dippm.show.report.plotted import require_libraries

        require_libraries()


@contextmanager
def progress_shown(*, quiet: bool = False, still: bool = False) -> Iterator[None]:
    """Show the stages that are reported inside the block, with the elapsed time.

    They are shown only if stderr is a terminal that can erase a line, not in files and pipes.

    Args:
        quiet: whether to show nothing.
        still: whether to draw only when a stage begins, so that no clock disturbs a measurement.
    """
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield
        return
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from dippm.base.progress import listening
    from dippm.show.report.console import console

    moving = () if still else (SpinnerColumn(), TimeElapsedColumn())
    line = Progress(
        *moving,
        TextColumn("{task.description}"),
        console=console(sys.stderr),
        transient=True,
        auto_refresh=not still,
    )
    with line:
        task = line.add_task("starting", total=None)

        def heard(stage: str) -> None:
            line.update(task, description=escape(printable(stage)), refresh=still)

        with listening(heard):
            yield


# Hints: Python's arguments, replaced by options of the running command.


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
