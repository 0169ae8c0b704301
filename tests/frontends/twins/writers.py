"""Twins as files, written by the frameworks themselves."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from tests.child import Child

WRITERS = {
    "onnx-old": ("torch_twins", "old"),
    "onnx-new": ("torch_twins", "new"),
    "keras": ("keras_twins", "keras"),
    "savedmodel": ("keras_twins", "savedmodel"),
    "paddle": ("paddle_twins",),
}


class Writers:
    """One process for each framework: what it imports is paid once, and no two ever meet."""

    def __init__(self) -> None:
        self._children: dict[str, Child] = {}

    def write(self, folder: Path, route: str, name: str, values: str) -> Path:
        """Write a model file."""
        writer, *kind = WRITERS[route]
        child = self._children.setdefault(writer, Child())
        return child(_write, writer, folder, name, values, *kind)

    def close(self) -> None:
        """End the processes."""
        for child in self._children.values():
            child.close()


def _write(writer: str, *arguments: Any) -> Path:
    return import_module(f"tests.frontends.twins.{writer}").write(*arguments)
