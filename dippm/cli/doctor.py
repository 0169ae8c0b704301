"""`dippm doctor`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from dippm.cli import options
from dippm.cli.output import print_json


def doctor(json: options.Json = False) -> None:
    """Check this installation: frameworks, checkpoints, GPU, memory and cache.

    Exit code 1 if a part is broken.
    """
    from dippm.show.report.console import console, findings_table
    from dippm.show.report.health import examine

    findings = examine()
    if json:
        print_json("doctor", {"findings": [asdict(finding) for finding in findings]})
    else:
        console().print(findings_table(findings))
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)
