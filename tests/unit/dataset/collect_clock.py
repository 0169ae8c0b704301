"""The collector with a clock that follows its rows, so that budgets do not depend on the machine.

    python collect_clock.py ROW_S HANG_S ...      the rest are the words of `dataset.collect`

Each row in the journal took ROW_S; a point that hangs lets HANG_S pass with every look at the clock
once a row is there.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from dataset.collect import supervisor
from dataset.collect.cli import main
from dataset.collect.pace import Pace


class RowsClock:
    """Seconds that pass with the rows of a journal."""

    def __init__(self, folder: Path, row_s: float, hang_s: float) -> None:
        self._journal, self._row_s, self._hang_s = folder / "journal.jsonl", row_s, hang_s
        self._most = self._hung_s = 0.0

    def __call__(self) -> float:
        rows = self._journal.read_bytes().count(b"\n") if self._journal.exists() else 0
        self._most = max(self._most, rows * self._row_s)
        self._hung_s += self._hang_s if self._most else 0.0
        return self._most + self._hung_s


if __name__ == "__main__":
    row_s, hang_s, *words = sys.argv[1:]
    folder = Path(words[words.index("--out") + 1])
    clock = RowsClock(folder, float(row_s), float(hang_s))
    supervisor.Pace = functools.partial(Pace, clock=clock)  # type: ignore[misc]
    sys.exit(main(words))
