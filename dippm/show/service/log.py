"""`log`: writes a line of JSON to stderr per event.

It contains no token, content or file name: models are named by the start of their hash.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime
from typing import Any

from dippm.base.printable import legible, printable

_writing = threading.Lock()


def log(event: str, level: str = "info", **fields: Any) -> None:
    """Write an event; a closed stderr is ignored."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"time": now, "level": level, "event": event} | {
        name: printable(legible(value)) if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }
    line = json.dumps(entry, default=str) + "\n"
    try:
        with _writing:
            sys.stderr.write(line)
            sys.stderr.flush()
    except (OSError, ValueError):
        return
