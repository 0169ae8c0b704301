"""`undo`: what an entry of the journal names is undone, once, by whoever finds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from dippm.errors import CollocationError
from dippm.runs.colocation import mps, removal
from dippm.runs.colocation.journal import Entry, boot, entries
from dippm.runs.colocation.outcome import Outcome


class Undone(NamedTuple):
    """What became of an entry.

    Attributes:
        done: what was undone, a sentence each.
        changed: what others had changed, a sentence each.
        left: what could not be undone; the entry is kept for another try.
    """

    done: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def undone(entry: Entry) -> Undone:
    """Undo what an entry names, the last first; forget the entry if nothing is left of it."""
    servers = [(held, mps.stop(mps.Server.from_json(held))) for held in reversed(entry.servers)]
    made = [removal.Made.from_json(held) for held in reversed(entry.slices)]
    slices = [(each, removal.remove(each)) for each in made]
    outcomes = [outcome for _, outcome in (*servers, *slices)]
    left = _said(outcomes, "left")
    changed = _said(outcomes, "changed")
    entry.servers = [held for held, outcome in reversed(servers) if outcome.kind == "left"]
    entry.slices = [each.as_json() for each, outcome in reversed(slices) if outcome.kind == "left"]
    if left:
        entry.write()
    else:
        entry.remove()
        for each in {each.gpu: each for each in made}.values():
            changed += removal.changes(each)
    return Undone(tuple(_said(outcomes, "undone")), tuple(changed), tuple(left))


def undo(journal: Path) -> list[str]:
    """Undo what a crash left of `seated`: servers of ours are ended, slices of ours destroyed.

    What belongs to a process that still runs is left. Nothing that others made is touched.

    Args:
        journal: the folder that `seated` was given; it may be missing.

    Returns:
        A sentence for each thing that was done, or could not be; none if nothing was left.
    """
    said: list[str] = []
    for path in entries(journal):
        try:
            said += _undo(path)
        except CollocationError as error:
            said.append(error.message)
    return said


def _undo(path: Path) -> tuple[str, ...]:
    entry = Entry.read(path)
    owner = entry.owner
    if owner.host != os.uname().nodename:
        return (f"{path.name} is left: it belongs to {owner.host}, undo it there",)
    if owner.lives():
        return (f"{path.name} is left: process {owner.pid}, which made it, still runs",)
    forgotten = []
    if owner.boot != boot() and entry.slices:
        entry.slices = []  # slices do not outlive a boot: what is there now is not ours
        forgotten = ["the machine was started anew since: its slices went with that"]
    result = undone(entry)
    return (*forgotten, *result.done, *result.changed, *result.left)


def _said(outcomes: list[Outcome], kind: str) -> list[str]:
    return [outcome.said for outcome in outcomes if outcome.kind == kind]
