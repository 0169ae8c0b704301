"""Twins as files, written by the frameworks themselves."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from dippm.model.frontends import registry
from dippm.model.frontends.frontend import InputSpec
from dippm.model.relax.raw_graph import RawGraph
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
        return self._child(writer)(_write, writer, folder, name, values, *kind)

    def read(self, route: str, path: Path, shape: tuple[int, ...]) -> RawGraph:
        """Convert a model file where it was written: a worker would import the framework again."""
        return RawGraph.from_json(self._child(WRITERS[route][0])(_read, path, shape))

    def _child(self, writer: str) -> Child:
        return self._children.setdefault(writer, Child())

    def close(self) -> None:
        """End the processes."""
        for child in self._children.values():
            child.close()


def _read(path: Path, shape: tuple[int, ...]) -> str:
    frontend = registry.find(path).frontend()
    return frontend.load(path, InputSpec.parse(shape), trust=False).to_json()


def _write(writer: str, *arguments: Any) -> Path:
    return import_module(f"tests.frontends.twins.{writer}").write(*arguments)
