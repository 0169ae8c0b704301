"""What a command checks before it works for a page."""

from __future__ import annotations

from pathlib import Path


def ready_to_plot(html: Path | None) -> None:
    """Check that a page with plots can be made, if one is asked for.

    Raises:
        ReportNotInstalledError: if a library of reports is missing.
    """
    if html is not None:
        from dippm.show.report.plotted import require_libraries

        require_libraries()
