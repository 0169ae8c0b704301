"""Runs as they happen: commands from outside, blocks and functions from inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dippm.runs.tracking.callbacks import (
        keras_callback,
        lightning_callback,
        transformers_callback,
    )
    from dippm.runs.tracking.decorator import tracked
    from dippm.runs.tracking.loop import iterations
    from dippm.runs.tracking.run import Run, current, span

__all__ = [
    "Run",
    "current",
    "iterations",
    "keras_callback",
    "lightning_callback",
    "span",
    "tracked",
    "transformers_callback",
]

_HOMES = {
    "Run": "run",
    "current": "run",
    "iterations": "loop",
    "keras_callback": "callbacks",
    "lightning_callback": "callbacks",
    "transformers_callback": "callbacks",
    "span": "run",
    "tracked": "decorator",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the sampler's process needs none."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"dippm.runs.tracking.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dippm.runs.tracking' has no attribute {name!r}")
