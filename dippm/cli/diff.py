"""`dippm diff`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, show
from dippm.cli.pages import ready_to_plot
from dippm.cli.progress import progress_shown


@options.conditions("channels_last", pairs=True)  # --layout says it for either side
def diff(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL [MODEL]", help="One model, or two.")
    ],
    *,
    layout: Annotated[
        str, typer.Option("--layout", help="channels-first or channels-last, or two.")
    ] = "channels-first",
    depth: Annotated[
        int | None,
        typer.Option("--depth", min=1, help="Names of a module's path that are kept; all."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="Changes listed before the others are summed up.")
    ] = 15,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Say where the time between two predictions went: two models, devices, precisions, ...

    A condition with two values, `--precision fp32,fp16` or `--mig full,3g.20gb`, gives each side
    its own.
    """
    if len(models) > 2:
        raise typer.BadParameter(f"{len(models)} models: give one or two")
    layouts = [_layout(text) for text in options.split_list(layout)]
    sides = {name: options.sides(name, value) for name, value in asked.items()}
    sides["channels_last"] = layouts[0] if len(layouts) == 1 else layouts
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        from dippm.decide.explanation import diff as answer

        after = models[1] if len(models) == 2 else None
        found = answer(models[0], after, **sides)
    document = found.to_dict(depth)
    how: dict[str, Any] = {"depth": depth, "rows": rows}
    show("diff", found, json=json, csv=csv, html=html, document=document, **how)


def _layout(text: str) -> bool:
    if text not in ("channels-first", "channels-last"):
        raise typer.BadParameter(f"layout {text!r}: channels-first or channels-last")
    return text == "channels-last"
