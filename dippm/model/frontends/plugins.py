"""Frontends of other distributions, isolated so that a broken one affects no other files.

A plug-in is imported and called in the caller, on a thread of its own with a time limit. If it
raises or does not answer it claims no file, a warning names it, and `dippm doctor` shows it.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from dippm.errors import ModelFileError, PluginWarning

GROUP = "dippm.frontends"
LIMIT_S = 20.0
"""Time limit of a call; `accepts` must be cheap, so this is generous for a slow disk."""

_faults: dict[str, str] = {}
_hung: set[str] = set()


def installed() -> tuple[EntryPoint, ...]:
    """Return the installed entry points, sorted by name."""
    try:
        return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))
    except Exception as error:  # hand-written metadata may be invalid
        _blame("entry points", f"the metadata of a package cannot be read ({_words(error)})")
        return ()


def accepts(name: str, module: str, path: Path) -> bool:
    """Return whether a plug-in claims a file; false for a broken plug-in.

    Raises:
        ModelFileError: if the plug-in itself reports an error in the file.
    """
    try:
        claimed: bool = _ask(module, lambda frontend: bool(frontend.accepts(path)))
    except ModelFileError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        _blame(f"{name} ({module})", _words(error))
        return False
    _faults.pop(f"{name} ({module})", None)
    return claimed


def fault(module: str) -> str:
    """Return the fault of a plug-in; "" if it can be imported and has all required names."""
    try:
        missing = _ask(
            module, lambda m: [n for n in ("accepts", "load") if not callable(getattr(m, n, None))]
        )
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return _words(error)
    return f"it has no {' and no '.join(missing)}" if missing else ""


def faults_hint() -> str:
    """Return a sentence about plug-ins that failed; "" if none did."""
    if not _faults:
        return ""
    listed = "; ".join(f"{who}: {why}" for who, why in _faults.items())
    return f" A plug-in that might read it is broken ({listed}); see `dippm doctor`."


def _ask(module: str, question: Callable[[Any], Any]) -> Any:
    if module in _hung:
        raise TimeoutError("it did not answer before")
    answer: list[Any] = []
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            answer.append(question(importlib.import_module(module)))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=ask, name=f"plug-in {module}", daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    if thread.is_alive():
        _hung.add(module)
        raise TimeoutError(f"it did not answer within {LIMIT_S:g} s")
    if raised:
        raise raised[0]
    return answer[0]


def _blame(who: str, why: str) -> None:
    if _faults.get(who) != why:
        _faults[who] = why
        warnings.warn(PluginWarning(f"the plug-in {who} is broken: {why}"), stacklevel=2)


def _words(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}".rstrip(": ").partition("\n")[0][:300]
