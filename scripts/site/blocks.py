"""Runs the code blocks of the pages.

Run: python -m scripts.site.blocks [PAGE ...]     # regenerate the output in console blocks

* `python`: all blocks of a page run one after the other in one namespace.
* `console`: each line is a command, or each line that begins with "$ "; its output follows, see
  `scripts.site.loose`. `dippm` runs in this process.
* A block with `title="NAME"` is a file: it is written next to the models, where commands find it.
* `<!-- not run: REASON -->` above a console block: commands and options are only checked to exist.
* `text` is not code. Any other language must have a title.

Pages of docs/tracking start and end processes, which this process would mistake for its own: here
their commands are only checked to exist, and `tests/unit/tracking/test_docs.py` runs what can be
run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.region import Lexeme

from scripts.site.links import ROOT
from scripts.site.loose import ELISION, difference

DOCS = ROOT / "docs"
PROCESSES = DOCS / "tracking"
FENCE = re.compile(
    r"^(?P<above><!-- not run: [^\n]* -->\n)?```(?P<language>\w*)(?P<info>[^\n]*)\n"
    r"(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="(?P<name>[^"]+)"')
COLUMNS = "80"
SHELL = ("cat", "ls", "head")
"""Other commands that pages may run."""


class BlockError(AssertionError):
    """A block of a page behaves differently from the page's text."""


def pages() -> list[Path]:
    """Return the hand-written pages."""
    return sorted(DOCS.rglob("*.md"))


def run(page: Path) -> int:
    """Run the blocks of a page in the current folder, and return their number.

    Raises:
        BlockError: if a command fails, has another output, or does not exist.
    """
    document = Document.parse(str(page), regions)
    examples = list(document.examples())
    for example in examples:
        example.evaluate()
    return len(examples)


def regions(document: Document) -> Iterator[Region]:
    """Yield the blocks of a page with their evaluators; a parser of Sybil."""
    starts_processes = Path(document.path).is_relative_to(PROCESSES)
    for match in FENCE.finditer(document.text):
        language, title = match["language"], TITLE.search(match["info"])
        if starts_processes:
            if language == "console":
                commands = list(own_commands(match["body"]))
                yield Region(match.start(), match.end(), commands, check_commands)
            continue
        lexeme = Lexeme(match["body"], match.start("body") - match.start(), 0)
        if title:
            yield Region(match.start(), match.end(), (title["name"], match["body"]), write_file)
        elif language == "python":
            yield Region(match.start(), match.end(), lexeme, PythonEvaluator())
        elif language == "console":
            commands = list(parse_commands(match["body"]))
            look = check_commands if match["above"] else run_commands
            yield Region(match.start(), match.end(), commands, look)
        elif language != "text":
            line = document.text.count("\n", 0, match.start()) + 1
            raise BlockError(f"{document.path}:{line}: a block of '{language}' that nobody runs")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a page.

    Attributes:
        words: words of the command, program first.
        output: its output on the page; None if the page shows none.
    """

    words: tuple[str, ...]
    output: str | None


def parse_commands(body: str) -> Iterator[Command]:
    """Yield the commands of a console block."""
    body = re.sub(r" *\\\n\s*(?!#)", " ", body)
    if not re.search(r"^\$ ", body, re.MULTILINE):
        for line in body.splitlines():
            if words := shlex.split(line, comments=True):
                yield Command(tuple(words), None)
        return
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield Command(tuple(shlex.split(line, comments=True)), output if output.strip() else None)


def own_commands(body: str) -> Iterator[Command]:
    """Yield our own commands in a shell block, up to a command that is their argument."""
    for line in re.findall(r"^\$ (dippm .*)$", body, re.MULTILINE):
        words = shlex.split(line, comments=True)
        ends = [words.index(mark) for mark in ("--", "|", ";") if mark in words]
        yield Command(tuple(words[: min(ends, default=len(words))]), None)


def write_file(example: Example) -> None:
    """Write the file of a block with a title."""
    name, text = example.parsed
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")


def run_commands(example: Example) -> None:
    """Run the commands of a block, and compare their output with the page."""
    for command in example.parsed:
        printed = output_of(command.words)
        found = command.output and difference(command.output, printed)
        if found:
            raise BlockError(
                f"{example.path}:{example.line}: {shlex.join(command.words)}\n{found}\n"
                f"Write it anew: python -m scripts.site.blocks {Path(example.path).name}"
            )


def output_of(words: tuple[str, ...]) -> str:
    """Run a command and return what it prints.

    Raises:
        BlockError: if it fails, or pages may not run it.
    """
    if words[0] == "dippm":
        from typer.testing import CliRunner

        from dippm.cli.app import app

        done = CliRunner().invoke(app, words[1:], env={"COLUMNS": COLUMNS}, prog_name="dippm")
        if done.exit_code:
            raise BlockError(f"{shlex.join(words)}: exit code {done.exit_code}\n{done.output}")
        return done.stdout
    if words[0] not in SHELL:
        raise BlockError(f"{shlex.join(words)}: pages run dippm, {', '.join(SHELL)}")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def check_commands(example: Example) -> None:
    """Check that the commands of a block exist, with every option that it names."""
    for command in example.parsed:
        look_up(command.words)


def look_up(words: tuple[str, ...]) -> None:
    """Check that a command exists, with every option that it names, without running it.

    Raises:
        BlockError: if it does not.
    """
    program, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        missing = set(rest) - set(targets)
    elif program == "pip":
        missing = _extras(" ".join(rest)) - _known_extras()
    elif program == "dippm":
        missing = _options(_own(words)) - set(
            re.findall(r"--[\w-]+", output_of((*_verb(words), "--help")))
        )
    elif program.startswith("python") and rest[0] == "-m":
        missing = _options(rest[1:]) - set(re.findall(r"--[\w-]+", _help(rest[1])))
    else:
        raise BlockError(f"{shlex.join(words)}: nobody knows how to look this up")
    if missing:
        raise BlockError(f"{shlex.join(words)}: there is no {', '.join(sorted(missing))}")


def _verb(words: tuple[str, ...]) -> tuple[str, ...]:
    is_group = words[1] in ("selftest", "plan") or words[1:3] == ("mig", "plan")
    return words[:3] if is_group else words[:2]


def _own(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of dippm itself, without those of a command that it runs."""
    from typer.main import get_group

    from dippm.cli.app import app

    command = get_group(app).commands.get(words[1])
    if command is None or command.context_settings.get("allow_interspersed_args", True):
        return words
    context = command.context_class(command, **command.context_settings)
    given, _, _ = command.make_parser(context).parse_args(list(words[2:]))
    return words[: len(words) - len(given["command"] or ())]


def _options(words: tuple[str, ...]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def _extras(text: str) -> set[str]:
    return {name for found in re.findall(r"\[([\w,]+)\]", text) for name in found.split(",")}


def _known_extras() -> set[str]:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return set(project["project"]["optional-dependencies"])


def _help(module: str) -> str:
    """Return the output of `python -m module --help`."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = [module, "--help"]
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            runpy.run_module(module, run_name="__main__", alter_sys=False)
    except ImportError as error:
        raise BlockError(f"python -m {module}: {error}") from None
    finally:
        sys.argv = before
    return printed.getvalue()


def regenerate_page(text: str, path: Path) -> str:
    """Return a page's text with regenerated output of its commands, running its other blocks."""
    document = Document(text, str(path))
    for region in list(regions(document)):
        document.add(region)
    parts, end = [], 0
    for example in document.examples():
        region = example.region
        if region.evaluator is run_commands and any(command.output for command in region.parsed):
            block = text[region.start : region.end]
            parts += [text[end : region.start], _regenerate_block(block, region.parsed)]
            end = region.end
        else:
            example.evaluate()
    return "".join(parts) + text[end:]


def _regenerate_block(block: str, commands: list[Command]) -> str:
    """Return a console block with regenerated output for the commands that show any."""
    asked = re.findall(r"^\$ .*(?:\\\n.*)*$", block, re.MULTILINE)
    lines = [block.partition("\n")[0]]
    for line, command in zip(asked, commands, strict=True):
        lines.append(line)
        if command.output:
            printed = output_of(command.words).strip("\n").splitlines()
            lines += elide_output([part.rstrip() for part in printed], command.output.splitlines())
    return "\n".join([*lines, "```"])


def elide_output(printed: list[str], said: list[str]) -> list[str]:
    """Return output with an elision in the same place as on the page."""
    if ELISION not in said:
        return printed
    first = said.index(ELISION)
    last = len("\n".join(said[first + 1 :]).strip("\n").splitlines())
    return [*printed[:first], ELISION, *printed[max(first, len(printed) - last) :]]


def main() -> int:
    """Regenerate all pages, or the named ones."""
    import tempfile

    from scripts.site.scene import build

    wanted = sys.argv[1:]
    os.environ.pop("COLUMNS", None)
    for page in pages():
        if wanted and page.relative_to(DOCS).as_posix() not in wanted:
            continue
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(build(Path(folder))):
            new = regenerate_page(text, page)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
