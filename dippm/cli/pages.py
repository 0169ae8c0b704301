"""Checks of a command before it makes a page."""

from __future__ import annotations

from pathlib import Path


def ready_to_plot(html: Path | None) -> None:
    """Check that a page with plots can be made, if one is requested.

    Raises:
        ReportNotInstalledError: if a library of reports is missing.
    """
    if html is not None:
        from dippm.show.report.plotted import require_libraries

        require_libraries()
