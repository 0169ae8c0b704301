"""Models that a framework writes in a process of its own, for suites that read files.

A writer is a module that runs as a script: ``list`` prints the names of its models, ``write NAME
FOLDER`` writes one as each kind of file and prints its facts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo.case import Case, NotBuiltError, Shape

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900


@dataclass(slots=True)
class _Shelf:
    """The files of the model that was written last; others are removed, for they are large."""

    writer: str
    name: str = ""
    folder: tempfile.TemporaryDirectory[str] | None = None
    facts: dict[str, Any] | None = None

    def take(self, name: str) -> tuple[Path, dict[str, Any]]:
        """Return the folder and the facts of a model."""
        if name != self.name:
            if self.folder is not None:
                self.folder.cleanup()
            self.folder = tempfile.TemporaryDirectory(prefix="zoo-files-")
            self.name, self.facts = name, None
            self.facts = json.loads(_run(self.writer, "write", name, self.folder.name))
        if self.facts is None or self.folder is None:
            raise NotBuiltError(f"{name} was not written")
        return Path(self.folder.name), self.facts


def cases_of(writer: str, kinds: Mapping[str, str]) -> Iterator[Case]:
    """Yield one case for each model and kind of file.

    Args:
        writer: module of the writer. Its facts are "macs" and "outputs" (shapes) of one sample,
            and "failed", why a kind could not be written, by kind.
        kinds: file name in the written folder, by kind.
    """
    shelf = _Shelf(writer)
    for name in json.loads(_run(writer, "list")):
        for kind, file in kinds.items():
            yield Case(
                f"{name}.{kind}",
                _source(shelf, name, kind, file),
                macs=lambda _, name=name: shelf.take(name)[1]["macs"],
                tolerance=0.0,
                out_shapes=lambda name=name: _shapes(shelf.take(name)[1]["outputs"]),
            )


def _source(shelf: _Shelf, name: str, kind: str, file: str) -> Callable[[Path], Path]:
    def source(_: Path) -> Path:
        folder, facts = shelf.take(name)
        if kind in facts["failed"]:
            raise NotBuiltError(facts["failed"][kind])
        return folder / file

    return source


def _shapes(stored: list[list[int]]) -> tuple[Shape, ...]:
    return tuple(tuple(shape) for shape in stored)


def _run(writer: str, *words: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-m", writer, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if answer.returncode:
        raise NotBuiltError(answer.stderr.strip()[-200:])
    return answer.stdout.strip().splitlines()[-1]
