"""Twins as files, written by the frameworks themselves."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

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
        self._pools: dict[str, ProcessPoolExecutor] = {}

    def write(self, folder: Path, route: str, name: str, values: str) -> Path:
        """Write a model file."""
        writer, *kind = WRITERS[route]
        if writer not in self._pools:
            self._pools[writer] = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return self._pools[writer].submit(_write, writer, folder, name, values, *kind).result()

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools.values():
            pool.shutdown()


def _write(writer: str, *arguments: Any) -> Path:
    return import_module(f"tests.frontends.twins.{writer}").write(*arguments)
