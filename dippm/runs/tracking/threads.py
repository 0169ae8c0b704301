"""Where something runs: process, thread and task."""

from __future__ import annotations

import os
import sys
import threading
from json.encoder import encode_basestring_ascii as quoted

_PROCESS = os.getpid()


def process_number() -> int:
    """Return the number of this process without asking the system."""
    return _PROCESS


def thread_label() -> str:
    """Return "PROCESS/THREAD", or "PROCESS/THREAD/TASK" inside a task of asyncio, as JSON."""
    label = f"{_PROCESS}/{threading.get_native_id()}"
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        loop = asyncio._get_running_loop()
        if loop is not None:
            task = asyncio.current_task(loop)
            if task is not None:
                return quoted(f"{label}/{task.get_name()}")
    return f'"{label}"'


def _forked() -> None:
    global _PROCESS
    _PROCESS = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
