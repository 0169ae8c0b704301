"""Destroy our own MIG slices; slices that others created or changed are left alone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dippm.devices import Placement
from dippm.errors import CollocationError
from dippm.runs.colocation import mps, slices
from dippm.runs.colocation.boards import IN_USE, Board, boards, collocation_error, neighbours
from dippm.runs.colocation.journal import Entry, UndoOutcome, boot, entries
from dippm.runs.colocation.slices import Instance

PATIENCE_S = 10.0
PAUSE_S = 0.1


class CreatedSlice(NamedTuple):
    """A slice that we created or were about to create.

    Attributes:
        gpu: UUID of the GPU.
        place: profile and position.
        profile_id: the driver's id of the profile.
        compute_slices: number of compute slices of the profile.
        before: instances that existed before this journal entry.
        id: the driver's id of the instance; None while it is unknown whether it was created.
    """

    gpu: str
    place: Placement
    profile_id: int
    compute_slices: int
    before: tuple[Instance, ...]
    id: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form for the journal."""
        return self._asdict()

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> CreatedSlice:
        """Return the slice of a journal's JSON form."""
        before = tuple(Instance(*instance) for instance in held["before"])
        return cls(**{**held, "place": Placement(*held["place"]), "before": before})

    def __str__(self) -> str:
        return f"{self.place} of {self.gpu}"


def destroy_slice(made: CreatedSlice) -> UndoOutcome:
    """Destroy a slice, waiting briefly for processes that are just ending."""
    try:
        with boards([made.gpu]) as (board,):
            return _destroy_with_retry(board, made)
    except CollocationError as error:
        return UndoOutcome("left", f"{made} is left: {error.message}")


def layout_changes(made: CreatedSlice) -> list[str]:
    """Return how the layout without our slices differs from the one before them."""
    try:
        with boards([made.gpu]) as (board,):
            known = slices.profiles(board)
            now, before = set(slices.layout(board, known)), set(made.before)
            new, gone = sorted(now - before), sorted(before - now)
    except CollocationError as error:
        return [f"the slices of {made.gpu} cannot be compared: {error.message}"]
    return [
        *(f"{p} of {made.gpu} was made meanwhile" for p in slices.placements_of(tuple(new), known)),
        *(
            f"{p} of {made.gpu} was removed meanwhile"
            for p in slices.placements_of(tuple(gone), known)
        ),
    ]


def _destroy_with_retry(board: Board, made: CreatedSlice) -> UndoOutcome:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _destroy(board, made)
        except board.nvml.NVMLError as error:
            if error.value != IN_USE:
                failed = collocation_error(error, f"{made} cannot be destroyed")
                return UndoOutcome("left", failed.message)
            if time.monotonic() >= end:
                users = ", ".join(map(str, neighbours(board))) or "by whom is not told"
                return UndoOutcome("left", f"{made} is left: it is in use, {users}")
        time.sleep(PAUSE_S)


def _destroy(board: Board, made: CreatedSlice) -> UndoOutcome:
    instance = _find_own_instance(board, made)
    if instance is None:
        if made.id is None:
            return UndoOutcome("nothing")
        return UndoOutcome("changed", f"{made} was gone: another process had removed it")
    nvml, handle = board.nvml, slices.handle_of(board, instance)
    if handle is None:
        return UndoOutcome("changed", f"{made} was just removed by another process")
    inside = slices.compute_instances(board, handle)
    full = slices.full_profile_id(board, handle, made.compute_slices)
    if any(profile != full for _, profile in inside):
        return UndoOutcome("changed", f"{made} is left: another process has divided it since")
    for part, _ in inside:
        nvml.nvmlComputeInstanceDestroy(part)
    nvml.nvmlGpuInstanceDestroy(handle)
    return UndoOutcome("undone", f"{made} was destroyed")


def _find_own_instance(board: Board, made: CreatedSlice) -> Instance | None:
    """Return our instance if it exists exactly as it was created."""
    known = (slices.Profile(made.place.profile, made.profile_id, made.compute_slices, 0),)
    for instance in slices.layout(board, known):
        if made.id is None and instance in made.before:
            continue
        expected = (made.id if made.id is not None else instance.id, made.profile_id)
        if instance == Instance(*expected, made.place.start, made.place.size):
            return instance
    return None


# Undoing the entries of a journal.


class UndoResult(NamedTuple):
    """The result of undoing an entry.

    Attributes:
        done: one sentence per undone change.
        changed: one sentence per change made by others.
        left: one sentence per change that could not be undone; the entry is kept for another try.
    """

    done: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def undo_entry(entry: Entry) -> UndoResult:
    """Undo the changes of an entry in reverse order; remove the entry if nothing is left."""
    servers = [(held, mps.stop(mps.Server.from_json(held))) for held in reversed(entry.servers)]
    made = [CreatedSlice.from_json(held) for held in reversed(entry.slices)]
    destroyed = [(each, destroy_slice(each)) for each in made]
    outcomes = [outcome for _, outcome in (*servers, *destroyed)]
    left = _messages(outcomes, "left")
    changed = _messages(outcomes, "changed")
    entry.servers = [held for held, outcome in reversed(servers) if outcome.kind == "left"]
    entry.slices = [
        each.as_json() for each, outcome in reversed(destroyed) if outcome.kind == "left"
    ]
    if left:
        entry.write()
    else:
        entry.remove()
        for each in {each.gpu: each for each in made}.values():
            changed += layout_changes(each)
    return UndoResult(tuple(_messages(outcomes, "undone")), tuple(changed), tuple(left))


def undo(journal: Path) -> list[str]:
    """Undo what a crash of `seated` left: end its MPS servers, destroy its slices.

    Entries of running processes are skipped. Nothing that others created is touched.

    Args:
        journal: the folder given to `seated`; it may be missing.

    Returns:
        One sentence per change, undone or not; empty if nothing was left.
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
        entry.slices = []  # slices do not survive a reboot: existing ones are not ours
        forgotten = ["the machine was restarted since, which removed its slices"]
    result = undo_entry(entry)
    return (*forgotten, *result.done, *result.changed, *result.left)


def _messages(outcomes: list[UndoOutcome], kind: str) -> list[str]:
    return [outcome.message for outcome in outcomes if outcome.kind == kind]
