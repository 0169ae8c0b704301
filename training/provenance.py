"""What a checkpoint says of its making, and what a training refuses before it begins."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import typer

from dippm.estimate.pretrained.store import CONFIG

PACKAGES = ("dippm", "numpy", "torch", "torch-geometric", "xgboost")
"""Whose versions decide what a training gives."""
ROOT = Path(__file__).resolve().parents[1]


def check_is_new(out: Path) -> Path:
    """Return the folder of a checkpoint that is to be written, after checking that it is new.

    Raises:
        BadParameter: if one is there: a published version never changes.
    """
    if (out / CONFIG).exists():
        raise typer.BadParameter(
            f"{out} is there already, and a published version never changes: name a new one"
        )
    return out


def describe_making(module: str, out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command that makes a checkpoint, and the versions that it ran with.

    Args:
        module: module that is run.
        out: folder of the checkpoint.
        options: options by name as on the command line. Folders that are not of this repository
            become placeholders, None and empty values are left out, a list is given once for each
            of its items.
    """
    words = ["python", "-m", module]
    for name, value in options.items():
        several = isinstance(value, Sequence) and not isinstance(value, str)
        for each in value if several else [value]:
            if each is not None:
                words += [f"--{name}", _word(name, each)]
    folder = out.resolve()
    words += ["--out", f"checkpoints/{folder.parent.name}/{folder.name}"]
    return {
        "command": " ".join(words),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def _word(name: str, value: Any) -> str:
    """Return a value as on the command line, from the root of the repository."""
    if not isinstance(value, Path):
        return str(value)
    path = value.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else f"<{name}>"
