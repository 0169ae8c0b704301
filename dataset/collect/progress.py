"""Progress on stderr: a bar with rich on a terminal, else a line from time to time."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any, Protocol

LINE_EVERY_S = 5.0


class Progress(Protocol):
    """Shows the progress of a campaign."""

    def row(self, row: dict[str, Any]) -> None:
        """Count a row."""
        ...

    def say(self, message: str) -> None:
        """Show a message above the progress."""
        ...

    def close(self) -> None:
        """Show the last state."""
        ...


class RowTally:
    """Counts rows and time.

    Attributes:
        total: number of points at the start.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.statuses: Counter[str] = Counter()
        self._began = time.monotonic()

    def text(self) -> str:
        """Return rate, remaining time and counts, such as "57.1/min · 0:12:03 left · 40 ok"."""
        elapsed = time.monotonic() - self._began
        done = self.statuses.total()
        tried = done - self.statuses["skipped"]
        counts = " · ".join(f"{n} {status}" for status, n in self.statuses.most_common())
        if not done:
            return "starting"
        left_s = elapsed / done * (self.total - done)
        return f"{60 * tried / elapsed:.1f}/min · {_clock(left_s)} left · {counts}"


class PlainProgress:
    """Lines on stderr: one every few seconds, and one per failure.

    Args:
        total: number of points.
    """

    def __init__(self, total: int) -> None:
        self._tally = RowTally(total)
        self._next = time.monotonic() + LINE_EVERY_S

    def row(self, row: dict[str, Any]) -> None:
        """Count a row."""
        self._tally.statuses[row["status"]] += 1
        if row["status"] not in ("ok", "skipped"):
            self.say(failure(row))
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            self._line()

    def say(self, message: str) -> None:
        """Print a message."""
        print(message, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Print the last state."""
        self._line()

    def _line(self) -> None:
        done = self._tally.statuses.total()
        self.say(f"{done}/{self._tally.total} · {self._tally.text()}")


class RichProgress:
    """A bar that stays at the bottom of the terminal.

    Args:
        total: number of points.

    Raises:
        ImportError: if rich is not installed.
    """

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._tally = RowTally(total)
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("starting", total=total)
        self._bar.start()

    def row(self, row: dict[str, Any]) -> None:
        """Count a row."""
        self._tally.statuses[row["status"]] += 1
        if row["status"] not in ("ok", "skipped"):
            self.say(failure(row))
        self._bar.update(self._task, advance=1, description=self._tally.text())

    def say(self, message: str) -> None:
        """Print a message above the bar."""
        self._bar.console.print(message, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


def progress(total: int) -> Progress:
    """Return a bar if stderr is a terminal with rich, else lines."""
    if sys.stderr.isatty():
        try:
            return RichProgress(total)
        except ImportError:
            pass
    return PlainProgress(total)


def failure(row: dict[str, Any]) -> str:
    """Return a line about a row without a measurement."""
    asked = f"{row['model']} batch {row['batch']} {row['precision']} {row['mode']} {row['phase']}"
    return f"{row['status']}: {asked}: {row['reason']}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def tell(message: str) -> None:
    """Print a message to stderr, independent of the progress display."""
    print(message, file=sys.stderr, flush=True)
