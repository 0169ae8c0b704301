"""`log`: a line of JSON on stderr for each event.

It has no token, no content and no name of a file: models are named by the start of their hash.
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
    """Write what happened; a reader that is gone is no matter."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told = {"time": now, "level": level, "event": event} | {
        name: printable(legible(value)) if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }
    line = json.dumps(told, default=str) + "\n"
    try:
        with _writing:
            sys.stderr.write(line)
            sys.stderr.flush()
    except (OSError, ValueError):
        return
