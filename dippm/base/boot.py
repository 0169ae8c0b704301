"""Starts another Python process on this package, whatever is in the current folder."""

from __future__ import annotations

import os


def boot(run: str) -> str:
    """Return a program for `python -P -c` that runs a statement with exactly this package."""
    home = os.path.abspath(__file__)
    for _ in ("boot.py", "base", "dippm"):
        home = os.path.dirname(home)
    return f"import sys; sys.path.insert(0, {home!r}); import dippm; del sys.path[0]; {run}"


def boot_module(name: str) -> str:
    """Return such a program that runs a module like `python -m`."""
    return boot(f"import runpy; runpy.run_module({name!r}, run_name='__main__')")
