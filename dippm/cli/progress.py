"""Progress on a terminal: one line on stderr that disappears before the answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def progress_shown(*, quiet: bool = False, still: bool = False) -> Iterator[None]:
    """Show the stages that are reported inside the block, with the elapsed time.

    Only if stderr is a terminal that can erase a line; files and pipes get nothing.

    Args:
        quiet: show nothing.
        still: draw only when a stage begins, so that no clock disturbs a measurement.
    """
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield
        return
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from dippm.base.printable import printable
    from dippm.base.progress import listening
    from dippm.show.report.console import console

    moving = () if still else (SpinnerColumn(), TimeElapsedColumn())
    line = Progress(
        *moving,
        TextColumn("{task.description}"),
        console=console(sys.stderr),
        transient=True,
        auto_refresh=not still,
    )
    with line:
        task = line.add_task("starting", total=None)

        def heard(stage: str) -> None:
            line.update(task, description=escape(printable(stage)), refresh=still)

        with listening(heard):
            yield
