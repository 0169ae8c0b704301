"""Menus to choose runs, types and descriptions: arrows, space, a for all, i to invert, enter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import typer

from dippm.base.printable import printable
from dippm.errors import DippmError
from dippm.runs.store.stored_run import StoredRun
from dippm.show.report.runs.catalogue import Entry, chosen
from dippm.show.report.runs.listing import when

Item = TypeVar("Item")


def pick(
    runs: Sequence[StoredRun], types: Sequence[str] = (), descriptions: Sequence[str] = ()
) -> tuple[list[StoredRun], list[Entry]]:
    """Let the user choose runs and entries.

    Args:
        runs: runs to choose from.
        types: types as in `chosen`; if given, their menu is skipped.
        descriptions: descriptions, likewise.

    Raises:
        DippmError: if there is nothing to choose from, or the menu library is missing.
        typer.Exit: with code 130 after Ctrl-C.
    """
    if not runs:
        raise DippmError("there are no runs yet", "`dippm run -- COMMAND` makes one.")
    wanted = _ask(
        "Runs",
        {f"{run.uuid[:8]}  {when(run)[:16]}  {run.name}  {run.status}": run for run in runs},
    )
    described = found = chosen(wanted, types, descriptions)
    if not types:
        asked = _ask("Types", {entry.type: entry.type for entry in found})
        described = [entry for entry in found if entry.type in asked]
    if descriptions:
        return wanted, described
    names = {entry.description or "(series)": entry.description for entry in described}
    left = _ask("Descriptions", names) if len(names) > 1 else list(names.values())
    return wanted, [entry for entry in described if entry.description in left]


def _ask(title: str, items: dict[str, Item]) -> list[Item]:
    try:
        import questionary
    except ImportError as error:
        hint = "Install it: pip install 'dippm[track]'; or give runs with --uuids."
        raise DippmError("the menus require questionary", hint) from error
    choices = [questionary.Choice(printable(text), value=item) for text, item in items.items()]
    answer: list[Any] | None = questionary.checkbox(
        f"{title}:",
        choices=choices,
        instruction="(space: select, a: all, i: invert, enter: continue)",
        validate=lambda chosen_: bool(chosen_) or "Select at least one with the space bar.",
    ).ask(kbi_msg="")
    if answer is None:
        raise typer.Exit(130)
    return answer
