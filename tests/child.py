"""A process that works for many tests: what it imports is paid once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
LARGE_MB = 2500


class Child:
    """It is replaced when it holds on to much memory, as frameworks do with models."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function there."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        result, held_mb = self._pool.submit(_call, function, arguments).result()
        if held_mb > LARGE_MB:
            self.close()
        return result

    def close(self) -> None:
        """End it."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _call(function: Callable[..., T], arguments: tuple[Any, ...]) -> tuple[T, float]:
    result = function(*arguments)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return result, pages * os.sysconf("SC_PAGE_SIZE") / 2**20
