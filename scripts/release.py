"""A release: its changes cut, its packages built, looked at, installed and used, its tag made.

Run: python -m scripts.release cut    # date this version's changes; details go to docs/changelog
     python -m scripts.release build  # `make release`: build/release, tried in a clean environment
     python -m scripts.release tag    # the tag of this commit, with the notes

The version is `dippm.__version__`, and raising it is a commit of its own. `build --tag v1.2.3`
refuses another version than the tag's; `build --draft` builds what is not ready yet, and says what
is missing. Nothing is published from here: the workflow `release` does it when the tag is pushed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import dippm

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "release"
SCREEN = 40
"""Lines of a terminal that are visible without scrolling."""

MODEL = """
import sys
from onnx import TensorProto, helper, save
value = helper.make_tensor_value_info
weight = helper.make_tensor("w", TensorProto.FLOAT, [64, 8], [0.0] * 512)
nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
graph = helper.make_graph(
    nodes, "small", [value("x", TensorProto.FLOAT, ["batch", 64])],
    [value("y", TensorProto.FLOAT, ["batch", 8])], [weight],
)
opset = [helper.make_opsetid("", 17)]
save(helper.make_model(graph, opset_imports=opset, ir_version=8), sys.argv[1])
"""
"""Writes a small model, in the clean environment."""


class ReleaseError(Exception):
    """A requirement of the release is not met."""


def section(changes: str, version: str) -> tuple[str, str]:
    """Return the date of a version ("unreleased" if it has none) and its section of the changes.

    Raises:
        ReleaseError: if the changes have no such version.
    """
    found = re.search(
        rf"^## {re.escape(version)}, (?P<date>[^\n]+)\n(?P<body>.*?)(?=^## |\Z)",
        changes,
        re.MULTILINE | re.DOTALL,
    )
    if not found:
        raise ReleaseError(f'CHANGELOG.md has no line "## {version}, unreleased" or with a date')
    return found["date"], found["body"].strip() + "\n"


def cut(changes: str, version: str, date: str) -> tuple[str, str]:
    """Return the changes with this version dated and cut to its first part, and the rest.

    The first part ends where the first heading of the third level begins. Links of the rest are
    those of a page in docs/changelog.
    """
    before, body = section(changes, version)
    if before != "unreleased":
        raise ReleaseError(f"{version} is of {before}; raise the version in dippm/__init__.py")
    short, _, rest = body.partition("### ")
    if rest:
        short += f"[Every change of {version}](docs/changelog/{version}.md)\n"
        rest = rest.replace("](docs/", "](../")
        rest = f"# Changes of {version}\n\n## {rest.replace(chr(10) + '### ', chr(10) + '## ')}"
    head = f"## {version}, "
    return changes.replace(f"{head}{before}\n\n{body}", f"{head}{date}\n\n{short}"), rest


def missing(version: str, tag: str | None) -> Iterator[str]:
    """Yield the unmet requirements of a release of this commit."""
    date, body = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        yield f"CHANGELOG.md calls {version} {date}: python -m scripts.release cut"
    if (lines := len(body.splitlines())) > SCREEN:
        yield f"its changes are {lines} lines, more than a screen of {SCREEN}"
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    if not cited or cited[1] != version:
        yield f"CITATION.cff is not of {version}"
    if _git("status", "--porcelain"):
        yield "files are not committed"
    if tag is not None and tag != f"v{version}":
        yield f"the tag {tag} is not v{version}, the version in dippm/__init__.py"


def build(out: Path) -> list[Path]:
    """Build source distribution and wheel, the wheel from the source distribution; check both."""
    shutil.rmtree(out / "dist", ignore_errors=True)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out / "dist", ROOT)
    files = sorted((out / "dist").iterdir())
    _run(sys.executable, "-m", "twine", "check", "--strict", *files)
    return files


def use(wheel: Path) -> str:
    """Install a wheel into a clean environment and predict a small file; return the answer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run(sys.executable, "-m", "venv", folder / "venv")
        python = folder / "venv" / "bin" / "python"
        pins = ("-c", ROOT / "constraints.txt")
        _run(python, "-m", "pip", "install", "--quiet", *pins, wheel)
        _run(python, "-m", "pip", "check")
        _run(python, "-c", MODEL, "small.onnx", cwd=folder)
        command = folder / "venv" / "bin" / "dippm"
        version = _run(command, "--version", cwd=folder).strip()
        if version != dippm.__version__:
            raise ReleaseError(f"the wheel says that it is {version}, not {dippm.__version__}")
        line = ("predict", "small.onnx", "--batch", "32", "--device", "A100")
        answer = json.loads(_run(command, *line, "--json", cwd=folder))
        if not answer["latency_ms"] > 0:
            raise ReleaseError(f"the installed wheel predicts no latency: {answer}")
        return _run(command, *line, cwd=folder)


def _run(*command: object, cwd: Path | None = None) -> str:
    """Return the output of a command that cannot import from the checkout."""
    words = [str(word) for word in command]
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd or ROOT, env=kept, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def _git(*words: str) -> str:
    return _run("git", *words).strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; return 1 and print the reason if it fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["cut", "build", "tag"])
    parser.add_argument("--tag", help="what this commit is tagged with")
    parser.add_argument("--draft", action="store_true", help="build what is not ready yet")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.UTC).date().isoformat())
    given = parser.parse_args(arguments)
    try:
        {"cut": _cut, "build": _build, "tag": _tag}[given.step](given)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _cut(given: argparse.Namespace) -> None:
    version, path = dippm.__version__, ROOT / "CHANGELOG.md"
    changes, rest = cut(path.read_text(encoding="utf-8"), version, given.date)
    if rest:
        archive = ROOT / "docs" / "changelog" / f"{version}.md"
        archive.parent.mkdir(exist_ok=True)
        archive.write_text(rest, encoding="utf-8")
        print(f"{archive.relative_to(ROOT)}: {len(rest.split())} words")
    path.write_text(changes, encoding="utf-8")
    print(f"CHANGELOG.md: {version}, {given.date}; read it, and commit both")


def _build(given: argparse.Namespace) -> None:
    faults = list(missing(dippm.__version__, given.tag))
    if faults and not given.draft:
        raise ReleaseError("not ready: " + "; ".join(faults))
    for fault in faults:
        print(f"draft: {fault}")
    files = build(OUT)
    _, notes = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), dippm.__version__)
    (OUT / "notes.md").write_text(notes, encoding="utf-8")
    for file in files:
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 2**20:.1f} MB")
    print(use(next(file for file in files if file.suffix == ".whl")))


def _tag(given: argparse.Namespace) -> None:
    name = f"v{dippm.__version__}"
    if faults := list(missing(dippm.__version__, given.tag)):
        raise ReleaseError("not ready: " + "; ".join(faults))
    _, notes = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), dippm.__version__)
    # "whitespace" keeps headings, which git would drop as comments.
    _git("tag", "--annotate", name, "--cleanup=whitespace", "--message", f"{name}\n\n{notes}")
    print(
        f"{name} is {_git('rev-parse', '--short', 'HEAD')}; to release it: git push origin {name}"
    )


if __name__ == "__main__":
    sys.exit(main())
