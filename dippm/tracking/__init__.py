"""Runs as they happen: commands from outside, blocks and functions from inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dippm.tracking.decorator import tracked
    from dippm.tracking.run import Run, current, span

__all__ = ["Run", "current", "span", "tracked"]

_HOMES = {"tracked": "decorator", "Run": "run", "current": "run", "span": "run"}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: the sampler's process needs none."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"dippm.tracking.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dippm.tracking' has no attribute {name!r}")
