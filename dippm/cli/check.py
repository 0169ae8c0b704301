"""`dippm check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, on_command_line, print_json, progress_shown, say, show

if TYPE_CHECKING:
    from dippm.decide.budgets import Check


def check(
    budgets: Annotated[
        Path, typer.Argument(metavar="BUDGETS", help="TOML file of models and their budgets.")
    ],
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="With --write: model files, or library models."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="Also compare with the --json output of an earlier check.",
        ),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            help="Allowed increase over the baseline: a percentage such as 5%, or standard "
            "deviations of the prediction interval such as 2sd.",
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write a new budget file for the given models.")
    ] = False,
    margin: Annotated[
        float,
        typer.Option("--margin", min=0, help="With --write: margin in % above the predictions."),
    ] = 10.0,
    device: Annotated[
        str, typer.Option("--device", "-d", help="With --write: GPU of the budgets.")
    ] = "A100",
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="With --write: samples per forward pass.")
    ] = 1,
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="SIZES",
            help="With --write: input shape without the batch dimension.",
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also write a JUnit XML report.")
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", help="Also write a SARIF 2.1.0 log.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown", metavar="FILE", help="Also write a Markdown table for a pull request."
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Allow model files that can execute code when they are read, and python entries.",
        ),
    ] = False,
    csv: options.Csv = None,
    html: options.Html = None,
    timeout_s: options.Timeout = 120.0,
    memory_limit_mb: options.MemoryLimit = 4096,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check models against budgets of latency, memory, energy and size, without a GPU.

    Exit code 1 if a model exceeds a budget, or cannot be predicted.
    """
    if write:
        with errors_reported(as_json=json), progress_shown(quiet=quiet):
            text = _first(
                budgets,
                models or [],
                margin=margin,
                trust=trust,
                conditions={"device": device, "batch": batch, "input": input},
            )
        if json:
            print_json("check-write", {"file": str(budgets), "content": text})
        else:
            say(f"wrote {budgets}")
        return
    if models:
        raise typer.BadParameter(
            "MODEL requires --write; without it the budget file names the models"
        )
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.budgets import check as answer

        found = answer(
            budgets,
            baseline=baseline,
            tolerance=tolerance,
            trust=trust,
            timeout_s=timeout_s,
            memory_limit_mb=memory_limit_mb,
        )
        for model in found.models:
            if model.error is not None:
                model.error.hint = on_command_line(model.error.hint)
        _write(found, junit=junit, sarif=sarif, markdown=markdown)
    show("check", found, json=json, csv=csv, html=html)
    if not found.passed:
        raise typer.Exit(1)


def _first(
    path: Path, models: list[str], *, margin: float, trust: bool, conditions: dict[str, object]
) -> str:
    """Write the first budgets, and return their text.

    Raises:
        BudgetError: if the file exists: limits that a user set are not replaced.
    """
    import tomli_w

    from dippm.base.files import expand_home
    from dippm.decide.budgets import first_budgets
    from dippm.errors import BudgetError
    from dippm.show.report.files import write_text

    place: Path = expand_home(path)
    if place.exists():
        raise BudgetError(
            f"{path} exists, and its limits are not replaced",
            "Name another file, or remove this one.",
        )
    content = first_budgets(
        models, place.parent, margin_percent=margin, conditions=conditions, trust=trust
    )
    text = tomli_w.dumps(content)
    write_text(place, text)
    return text


def _write(check: Check, *, junit: Path | None, sarif: Path | None, markdown: Path | None) -> None:
    from dippm.base.printable import json_text
    from dippm.show.report import check_formats
    from dippm.show.report.files import write_text

    if junit:
        write_text(junit, check_formats.junit(check))
    if sarif:
        write_text(sarif, json_text(check_formats.sarif(check)) + "\n")
    if markdown:
        write_text(markdown, check_formats.markdown(check))
