"""Frame of every command: uncaught errors, a failing stdout, and signals become exit codes.

* a `DippmError`: its message and hint, exit code 1 (see `output`)
* a usage error: exit code 2, under --json one document
* Ctrl-C: exit code 130, silently
* a closed pipe: exit code 141, like a program that SIGPIPE ended
* a full device: one line on stderr, exit code 1
* anything else: one line and a report file, exit code 1
* SIGTERM, SIGHUP: workers and their folders are removed, exit code 128 + n
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shlex
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from types import FrameType
from typing import Any, get_args

import typer
from typer.core import TyperGroup

from dippm.base import interrupt
from dippm.base.printable import PLAIN, legible, printable
from dippm.base.written import decimal_number, whole_number
from dippm.cli.output import (
    OPTIONS,
    on_command_line,
    one_command,
    options_of,
    print_json,
    report_error,
)
from dippm.errors import DippmError, DippmWarning, UnexpectedError, shortened
from dippm.estimate.conditions import OTHER_OPTIONS

INTERRUPTED, READER_GONE = 130, 141
VALUES = {"<int>": "N", "<int range>": "N", "<float>": "X", "<float range>": "X", "<path>": "FILE"}
FOREIGN = ("run", "track")
"""Commands that run another program."""
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Usage error of click, which typer vendors or imports."""

_STREAM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF)


class Commands(TyperGroup):
    """The group of all commands, which turns every outcome into an exit code."""

    def __init__(self, **given: Any) -> None:
        """Take the commands, and name the values of their options in the help."""
        super().__init__(**given)
        for command in (self, *_commands(self)):
            command.get_params = _naming_values(command.get_params)

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run a command line and exit with its code."""
        args = words = _at_home(sys.argv[1:] if args is None else args)
        _prepare_streams()
        with one_command(), _warnings_in_a_line(), _exit_codes(words), interrupt.raised():
            if "--json" in words:
                self._main_as_json(args, extra)
            else:
                super().main(args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; see the list of this module for its errors."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError as error:  # typer would turn it into exit code 1
            raise _StreamError from error
        except UsageError as error:
            _name_meant_option(error)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Choose the command, whose name may have two words, and store its options for hints."""
        two = " ".join(args[:2])
        found = super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)
        if found[1] is not None:
            OPTIONS.set(options_of(found[1]))
            _check_numbers(found[1], found[2])
        return found

    def _main_as_json(self, args: Sequence[str] | None, extra: dict[str, Any]) -> None:
        try:
            code = super().main(args, **{**extra, "standalone_mode": False})
        except typer.Abort:
            sys.exit(INTERRUPTED)
        except UsageError as error:
            hint = f"`{_path(error)} --help` lists arguments and options."
            document = {"type": "UsageError", "message": _message(error), "hint": hint}
            print_json("error", {"error": document})
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


def _name_meant_option(error: Any) -> None:
    """Let an error of an unknown option name the one that is called so elsewhere, `--gpu`."""
    asked = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    option = "--" + OTHER_OPTIONS.get(asked, "").replace("_", "-")
    if error.ctx and any(option in p.opts for p in error.ctx.command.params):
        error.possibilities = [option]


def _check_numbers(command: Any, words: Sequence[str]) -> None:
    """Refuse numbers that only Python accepts, such as "1_0", before typer sees them."""
    if not command.context_settings.get("allow_interspersed_args", True):
        words = _before_program(command, words)
    named = {word: read for p in command.params if (read := _reads(p)) for word in p.opts}
    for word, following in pairwise([*words, ""]):
        if word == "--":
            return
        option, equals, value = word.partition("=")
        read, value = named.get(option), value if equals else following
        try:
            if read is not None:
                read(value)
        except ValueError as error:
            raise typer.BadParameter(shortened(str(error)), param_hint=option) from None


def _before_program(command: Any, words: Sequence[str]) -> Sequence[str]:
    """Return the arguments of the command itself, without those of the program that it runs."""
    valued = {word for p in command.params if not getattr(p, "is_flag", False) for word in p.opts}
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        place += 2 if words[place] in valued else 1
    return words[:place]


def _reads(parameter: Any) -> Callable[[str], float] | None:
    """Return the parser of the numbers of an option; None if it takes none."""
    descriptor = getattr(parameter, "type_descriptor", None)  # exists since typer 0.26
    kind = descriptor.annotation if descriptor else parameter.type.name.partition(" ")[0]
    kinds = {kind, *get_args(kind)}
    if kinds & {int, "integer"}:
        return whole_number
    return decimal_number if kinds & {float, "float"} else None


def _commands(group: Any) -> Iterator[Any]:
    for command in group.commands.values():
        yield command
        if hasattr(command, "commands"):
            yield from _commands(command)


def _naming_values(get_params: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    """Show "--batch N" and "--json" instead of typer's "--batch <int>" and "--json <bool>"."""

    def named(context: Any) -> list[Any]:
        parameters = get_params(context)
        for parameter in parameters:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None
            elif parameter.metavar is None and hasattr(parameter, "display_type"):
                word = max(parameter.opts, key=len).rpartition("-")[2].upper()
                kind = parameter.display_type(context)
                parameter.metavar = (
                    "" if parameter.is_flag else VALUES.get(kind, word if len(word) > 2 else "TEXT")
                )
        return parameters

    return named


def _at_home(words: Sequence[str]) -> list[str]:
    """Expand "~" in a command line like a shell, also after "=".

    Arguments of a program that the command runs are unchanged.
    """
    if words and words[0] in FOREIGN:
        return list(words)
    found = []
    for word in words:
        option, equals, value = word.partition("=")
        is_option = bool(equals) and option.startswith("--")
        home = os.path.expanduser(value if is_option else word)
        found.append(f"{option}={home}" if is_option else home)
    return found


class _StreamError(Exception):
    """Stdout cannot be written; the cause has the reason."""


def _message(error: Any) -> str:
    message: str = error.format_message()
    return legible(message)


def _path(error: Any) -> str:
    return str(error.ctx.command_path) if error.ctx else "dippm"


@contextlib.contextmanager
def _exit_codes(words: Sequence[str]) -> Iterator[None]:
    """Turn every outcome of a command into its exit code."""
    try:
        try:
            yield
        except SystemExit:
            _flush()
            raise
        except (OSError, _StreamError):
            raise
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BaseException as error:
            report_error(_dippm_error(error, words), as_json="--json" in words)
            _flush()
            sys.exit(1)
        _flush()
    except (OSError, _StreamError) as error:
        cause = error.__cause__ if isinstance(error, _StreamError) else error
        assert isinstance(cause, OSError)
        if cause.errno == errno.EPIPE:
            _forget_stdout()
            sys.exit(READER_GONE)
        if cause.errno in _STREAM_ERRORS and cause.filename is None:
            _forget_stdout()
            reason = cause.strerror or str(cause)
            failed = DippmError(f"cannot write the answer: {reason}", "Write it elsewhere.")
            report_error(failed, as_json=False)
        else:
            report_error(_dippm_error(cause, words), as_json="--json" in words)
        sys.exit(1)


def _dippm_error(error: BaseException, words: Sequence[str]) -> DippmError:
    return error if isinstance(error, DippmError) else _report_crash(error, words)


def _prepare_streams() -> None:
    """Replace closed streams, and let them encode every character."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # closed: no pipe of DIPPM may get its descriptor
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  lives as long as we do
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=PLAIN)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        raise _StreamError from error


def _forget_stdout() -> None:
    """Redirect the interpreter's flush at exit to the null device."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Show DIPPM's warnings as one line, without a place in the code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def in_a_line(message: Any, category: Any, *place: Any, **more: Any) -> None:
            if issubclass(category, DippmWarning):
                text = on_command_line(printable(str(message)))
                print(f"warning: {text}", file=sys.stderr)
            else:
                show(message, category, *place, **more)

        warnings.showwarning = in_a_line
        yield


_DISTRIBUTIONS = (
    "dippm", "torch", "torch-geometric", "apache-tvm", "onnx", "numpy", "safetensors", "typer",
    "rich", "keras", "tensorflow-cpu", "paddlepaddle", "timm", "torchvision", "transformers",
)  # fmt: skip


def _report_crash(error: BaseException, words: Sequence[str]) -> UnexpectedError:
    """Write a report about an exception, and return the error for the user.

    Args:
        error: uncaught exception.
        words: arguments of the command line.
    """
    what = f"{type(error).__name__}: {_text_of_error(error)}".rstrip(": ").partition("\n")[0]
    message = f"DIPPM failed unexpectedly: {what[:500]}"
    try:
        place = _write_report(_report(error, words))
    except OSError as failure:
        reason = failure.strerror or str(failure)
        unexpected_error = UnexpectedError(
            message, f"No report could be written ({reason}); set TMPDIR."
        )
    else:
        hint = (
            f"This is a bug in DIPPM. Report it with {place}, which has no content of your files."
        )
        unexpected_error = UnexpectedError(message, hint)
    unexpected_error.__cause__ = error
    return unexpected_error


def _report(error: BaseException, words: Sequence[str]) -> str:
    lines = [
        f"written: {datetime.now(UTC).isoformat(timespec='seconds')}",
        f"command: dippm {shlex.join(words)}",
        f"python: {sys.version.split()[0]} on {platform.platform()}",
        *(f"{name}: {_installed_version(name)}" for name in _DISTRIBUTIONS),
        "",
        *_traceback(error),
    ]
    return "\n".join(printable(line, keep="\n") for line in lines) + "\n"


def _traceback(error: BaseException) -> list[str]:
    try:
        return ["".join(traceback.format_exception(error))]
    except Exception as broken:  # an exception that cannot be formatted
        return [*traceback.format_tb(error.__traceback__), f"(not shown: {type(broken).__name__})"]


def _text_of_error(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _installed_version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _write_report(text: str) -> str:
    handle, path = tempfile.mkstemp(prefix="dippm-report-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return path


_SIGNALS = ("SIGTERM", "SIGHUP")  # Ctrl-C is an exception already


def end_in_order() -> None:
    """Turn termination signals into an exit with code 128 + n.

    A second one ends the process at once. An ignored signal stays ignored, as under nohup.
    """
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)
