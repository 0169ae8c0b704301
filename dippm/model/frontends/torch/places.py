"""Where in a model's own code an error arose."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LONGEST_LINE = 80
_DIPPM = str(Path(__file__).parents[3]) + os.sep
_CALLS_MODELS = str(Path(__file__).with_name("candidates.py"))
"""What lies beyond is code of whoever asks."""
_PYTHON = sysconfig.get_paths()["stdlib"]


def place_of(error: BaseException | None, module: torch.nn.Module | None = None) -> str:
    """Return the innermost line of a model's own code that an error went through, "" if none.

    Args:
        error: that was raised while the model ran.
        module: the model; lines of files that define its parts are preferred to those of libraries
            that they call.
    """
    own = _files(module) if module is not None else frozenset()
    while error is not None:
        frames = [(code, line) for code, line in _frames(error) if not _is_foreign(code, own)]
        if frames:
            code, line = next((f for f in reversed(frames) if f[0].co_filename in own), frames[-1])
            return described(code, line)
        error = error.__cause__ or error.__context__
    return ""


def calling_place() -> str:
    """Return the innermost line of a model's own code that runs now, "" if none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _CALLS_MODELS:
        if not _is_foreign(frame.f_code):
            return described(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return ""


def described(code: CodeType, line: int) -> str:
    """Return a line of code as its file, number and text."""
    text = linecache.getline(code.co_filename, line).strip()
    shown = text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + " ..."
    place = f"{Path(code.co_filename).name}, line {line}"
    return f"{place}: {shown}" if shown else place


def _frames(error: BaseException) -> Iterator[tuple[CodeType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lineno
        trace = trace.tb_next


def _is_foreign(code: CodeType, own: frozenset[str] = frozenset()) -> bool:
    """Tell code of PyTorch, DIPPM and Python from that of models and their libraries."""
    name = code.co_filename
    if name in own:
        return False
    if name.startswith(("<", _DIPPM, _torch())):
        return True
    return name.startswith(_PYTHON) and "site-packages" not in name


@cache
def _torch() -> str:
    import torch

    return str(Path(torch.__file__).parent) + os.sep


def _files(module: torch.nn.Module) -> frozenset[str]:
    codes = (
        getattr(getattr(type(part), "forward", None), "__code__", None) for part in module.modules()
    )
    names = {code.co_filename for code in codes if code is not None}
    return frozenset(name for name in names if not name.startswith(("<", _DIPPM, _torch())))
