"""What leaves the command line: hints in its own words, nothing hidden, one error for anything."""

from __future__ import annotations

import ast
import inspect
import json
import re
import warnings
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

import dippm
from dippm import errors
from dippm.base.printable import json_text, printable
from dippm.cli.app import app
from dippm.cli.output import OPTIONS, Option, on_command_line, options_of
from dippm.errors import DippmError

PACKAGE = Path(inspect.getfile(errors)).parent
HIDDEN = "a\x1b[31m\x9b\u202e\u2066\n\r\udcff\u2028b"


@pytest.fixture
def options():
    known = {
        "trust": Option("--trust", True),
        "channels_last": Option("--channels-last", True),
        "timeout_s": Option("--timeout-s", False),
        "input": Option("--input", False),
        "framework": Option("--framework", False),
    }
    token = OPTIONS.set(known)
    yield known
    OPTIONS.reset(token)


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("or pass trust=True.", "or pass --trust."),
        ("Ask for channels_last=False, or", "Ask for no --channels-last, or"),
        ("Give it timeout_s=600, or", "Give it --timeout-s 600, or"),
        ("Give it timeout_s=..., or", "Give it --timeout-s ..., or"),
        ("leave framework= out.", "leave --framework out."),
        ('Give input="3,224,224".', "Give --input 3,224,224."),
        ('Give input="a=3,4;trust=2".', 'Give --input "a=3,4;trust=2".'),
        ("is Conv2d: input=3,H,W.", "is Conv2d: --input 3,H,W."),
        ('by name: "input=128;trust=128"', 'by name: "input=128;trust=128"'),
        ("memory_limit_mb=... is Python's", "memory_limit_mb=... is Python's"),
        ("if a == b or x=1", "if a == b or x=1"),
    ],
)
def test_hints_speak_the_language_of_the_command(options, python, words):
    assert on_command_line(python) == words


def test_without_a_command_a_hint_is_python():
    assert on_command_line("pass trust=True") == "pass trust=True"


def test_the_running_command_decides_the_words(tmp_path):
    import torch

    path = tmp_path / "model.pt"
    torch.save(Path.touch, path)
    document = json.loads(CliRunner().invoke(app, ["graph", str(path), "--json"]).stdout)
    assert "pass --trust." in document["error"]["hint"]
    with pytest.raises(DippmError, match="pass trust=True"):
        dippm.read_graph(path)


def test_nothing_hidden_reaches_a_terminal():
    shown = printable(HIDDEN)
    assert shown == r"a\x1b[31m\x9b\u202e\u2066\n\r\udcff\u2028b"
    assert printable("é – ×\u00a0b") == "é – ×\u00a0b"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_json_is_exact_and_hides_nothing():
    text = json_text({"name": HIDDEN, "other": "é – \U000e0041"})
    assert json.loads(text) == {"name": HIDDEN, "other": "é – \U000e0041"}
    assert text.replace("\n", "").isprintable()


def test_an_error_shows_no_escapes_but_keeps_them():
    error = DippmError(f"no file {HIDDEN}", "Look again.")
    assert "\x1b" not in str(error)
    assert error.message == f"no file {HIDDEN}"


def hintless_errors():
    """Yield the places in the package where an error of ours is made without a next step."""
    ours = {name for name in vars(errors) if name.endswith("Error")}
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        ours_here = ours | {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and ours & {ast.unparse(b) for b in node.bases}
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name not in ours_here:
                continue
            given = node.args[1:2] + [k.value for k in node.keywords if k.arg == "hint"]
            empty = given and isinstance(given[0], ast.Constant) and not given[0].value
            if not given or empty:
                yield f"{file.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)[:90]}"


def words_of_the_command_line():
    """Yield hints below the command line that name options instead of arguments."""
    commands = get_command(app).commands.values()
    words = {option.word for c in commands for option in options_of(c).values()}
    pattern = re.compile(rf"(?<![\w`-])(?:{'|'.join(sorted(words))})\b")
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.is_relative_to(PACKAGE / "cli"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):
                for part in ast.walk(node):
                    if not isinstance(part, ast.Constant):
                        continue
                    if pattern.search(re.sub("`python -m [^`]*`", "", str(part.value))):
                        yield f"{file.relative_to(PACKAGE)}:{part.lineno}: {part.value}"


def test_hints_below_the_command_line_are_python():
    found = list(words_of_the_command_line())
    assert not found, "\n".join(["write argument=value, the command line respells it:", *found])


WITHOUT_A_STEP: dict[str, str] = {}
"""Places that may have no hint (file:code), each with its reason."""


def test_every_error_names_the_next_step():
    found = [place for place in hintless_errors() if place not in WITHOUT_A_STEP]
    assert not found, "\n".join(["errors without a hint:", *found])


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """A command that fails as nobody foresaw."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def run(error, *words):
        def fail(*_args, **_kwargs):
            raise error

        monkeypatch.setattr("dippm.api.graph_at", fail)
        return CliRunner().invoke(app, ["graph", "model.onnx", *words])

    yield run
    monkeypatch.setattr("tempfile.tempdir", None)


class UnshownError(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("odd\x1b[0m"),
        RecursionError("deep"),
        MemoryError(),
        UnshownError(),
        ExceptionGroup("several", [ValueError("one")]),
        OSError(5, "Input/output error", "some.file"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_last_resort_is_one_error_and_a_report(broken, tmp_path, error):
    answer = broken(error, "--json", "--input", "secret\x1b")
    assert answer.exit_code == 1
    assert answer.stderr == ""
    document = json.loads(answer.stdout)["error"]
    assert document["type"] == "UnexpectedError"
    assert type(error).__name__ in document["message"]
    (report,) = tmp_path.glob("dippm-report-*.txt")
    assert str(report) in document["hint"]
    text = report.read_text()
    assert "Traceback" in text or "not shown" in text
    assert "command: dippm graph model.onnx --json" in text
    assert "torch: 2" in text
    assert "\x1b" not in text
    plain = broken(error)
    assert plain.exit_code == 1
    assert plain.stdout == ""
    assert "Traceback" not in plain.stderr
    assert len(plain.stderr.splitlines()) == 2


def test_a_report_that_cannot_be_written_is_said(broken, monkeypatch):
    def full(**_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    answer = broken(ValueError("odd"), "--json")
    assert "No space left" in json.loads(answer.stdout)["error"]["hint"]


def test_an_interrupt_is_quiet(broken):
    for words in ([], ["--json"]):
        answer = broken(KeyboardInterrupt(), *words)
        assert (answer.exit_code, answer.stdout, answer.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "words",
    [["predict"], ["predict", "x.onnx", "--batch", "many"], ["conquer"], ["devices", "--fast"]],
)
def test_usage_errors_are_a_document_too(words):
    answer = CliRunner().invoke(app, [*words, "--json"])
    assert answer.exit_code == 2
    assert answer.stderr == ""
    document = json.loads(answer.stdout)["error"]
    assert document["type"] == "UsageError"
    assert document["message"]
    assert "--help" in document["hint"]


def test_a_usage_error_found_by_a_command_is_a_document():
    answer = CliRunner().invoke(app, ["compare", "x.onnx", "--sort", "beauty", "--json"])
    assert answer.exit_code == 2
    assert "beauty" in json.loads(answer.stdout)["error"]["message"]


def test_our_warnings_are_a_line(monkeypatch):
    def warn(*_args, **_kwargs):
        warnings.warn(errors.DippmWarning("odd \x1b[1m"), stacklevel=1)
        raise typer.Exit(0)

    monkeypatch.setattr("dippm.api.graph_at", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        answer = CliRunner().invoke(app, ["graph", "model.onnx"])
    assert answer.stderr == "warning: odd \\x1b[1m\n"
