"""Runs as they happen: commands from outside, blocks and functions from inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dippm.tracking.callbacks import (
        keras_callback,
        lightning_callback,
        transformers_callback,
    )
    from dippm.tracking.decorator import tracked
    from dippm.tracking.loop import iterations
    from dippm.tracking.run import Run, current, span

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

        return getattr(import_module(f"dippm.tracking.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dippm.tracking' has no attribute {name!r}")
