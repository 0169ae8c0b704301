"""What is going on, on a terminal: one line on stderr that goes away when the answer comes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def progress_shown(*, quiet: bool = False, still: bool = False) -> Iterator[None]:
    """Show the stages that are told inside the block, with the time since it began.

    Only if stderr is a terminal that can take a line back: files and pipes get nothing.

    Args:
        quiet: show nothing.
        still: draw only when a stage begins. A measurement shall not share its processor with a
            clock.
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
