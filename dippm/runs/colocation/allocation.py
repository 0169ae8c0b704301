"""`seated`: allocate devices to runs that share them, and restore the devices at the end."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dippm.devices import Placement, arrange
from dippm.errors import CollocationError, CollocationWarning, UnknownNameError
from dippm.runs.colocation import mps, slices
from dippm.runs.colocation.boards import Board, boards, check_alone, neighbours
from dippm.runs.colocation.instance_removal import CreatedSlice, undo_entry
from dippm.runs.colocation.journal import Entry
from dippm.runs.colocation.sharing import Seat, Sharing

NO_DEVICE = ("", "-")
AGAIN = "Run dippm.runs.colocation.undo with the same journal when the device is free."


@contextmanager
def seated(
    devices: Sequence[str] = ("0",),
    sharing: str | Sequence[str] = "",
    count: int = 1,
    *,
    journal: Path,
) -> Iterator[tuple[Seat, ...]]:
    """Allocate devices to runs that share them; at the end every change is undone.

    That includes an exception, Ctrl-C, and SIGTERM or SIGHUP (where the program has no handler of
    its own); after a SIGKILL or a crash call `undo`.

    Args:
        devices: index in NVML (in CUDA_VISIBLE_DEVICES where it is set) or UUID of each GPU that
            every run uses; an existing MIG slice is given by its UUID. ("",) or ("-",) is no GPU,
            and nothing is changed.
        sharing: way of sharing, see `Sharing.parse`; a sequence gives each run its own MIG profile.
        count: number of runs that share the devices.
        journal: folder, created if missing: each side effect is recorded there beforehand, so that
            `undo` finds what a crash left.

    Yields:
        One seat per run.

    Raises:
        DevicePermissionError: if the driver denies MIG slices to this user.
        DeviceBusyError: if slices are to be created on a GPU in use by others.
        CollocationError: if the devices cannot be shared this way, with nothing left behind; or, at
            the end, if something could not be undone.
        UnknownNameError: if a GPU has no such MIG profile.

    Warns:
        CollocationWarning: if others changed the layout of a GPU meanwhile.
    """
    ways = _parse_sharing(sharing, count)
    if all(device.strip() in NO_DEVICE for device in devices):
        yield tuple(Seat({}, (), "", "", {}) for _ in ways)
        return
    entry = Entry.new(journal)
    with exit_on_signals():
        try:
            yield _allocate(devices, ways, entry)
        except BaseException:
            _release(entry, failing=True)
            raise
        else:
            _release(entry, failing=False)


def _parse_sharing(sharing: str | Sequence[str], count: int) -> tuple[Sharing, ...]:
    asked = [sharing] * count if isinstance(sharing, str) else list(sharing)
    ways = tuple(Sharing.parse(text) for text in asked)
    if not ways:
        raise CollocationError("no run is to be seated", "Give count=1 or more.")
    if len({way.kind for way in ways}) > 1 or len({way for way in ways if way.kind == "mps"}) > 1:
        words = ", ".join(sorted({str(way) or "none" for way in ways}))
        hint = "Runs together share in one way; only their MIG profiles may differ."
        raise CollocationError(f"runs together cannot share by {words}", hint)
    return ways


def _allocate(devices: Sequence[str], ways: tuple[Sharing, ...], entry: Entry) -> tuple[Seat, ...]:
    with boards(devices) as found:
        match ways[0].kind:
            case "mig":
                return _allocate_slices(found, ways, entry)
            case "mps":
                return _allocate_mps(found, ways, entry)
            case _:
                return _allocate_whole(found, ways)


def _allocate_whole(found: tuple[Board, ...], ways: tuple[Sharing, ...]) -> tuple[Seat, ...]:
    _check_whole(found)
    facts = _facts(found, ways)
    seat = _make_seat(found, ways[0], {}, facts)
    return (seat,) * len(ways)


def _allocate_mps(
    found: tuple[Board, ...], ways: tuple[Sharing, ...], entry: Entry
) -> tuple[Seat, ...]:
    _check_whole(found)
    facts, way = _facts(found, ways), ways[0]
    server = mps.Server.new(tuple(board.visible for board in found))
    entry.servers.append(server.as_json())
    entry.write()
    facts |= mps.start(server, way)
    seat = _make_seat(found, way, mps.environment(server, way), facts)
    return (seat,) * len(ways)


def _allocate_slices(
    found: tuple[Board, ...], ways: tuple[Sharing, ...], entry: Entry
) -> tuple[Seat, ...]:
    if len(found) > 1 or found[0].slice:
        what = f"a slice of {found[0].slice}" if found[0].slice else f"{len(found)} GPUs"
        hint = "A process uses one slice: name one whole GPU."
        raise CollocationError(f"MIG slices cannot be made of {what} for one run", hint)
    (board,) = found
    slices.check_mode(board)
    check_alone(board)
    known = slices.profiles(board)
    chosen = [_find_profile(board, way, known) for way in ways]
    before = slices.layout(board, known)
    places = _arrange_slices(board, chosen, known, slices.placements_of(before, known))
    facts = _facts(found, ways)
    facts["mig.before"] = ", ".join(map(str, slices.placements_of(before, known))) or "none"
    seats = []
    for profile, place, way in zip(chosen, places, ways, strict=True):
        made = CreatedSlice(board.uuid, place, profile.id, profile.compute_slices, before)
        entry.slices.append(made.as_json())
        entry.write()
        instance = slices.create_instance(board, profile, place)
        entry.slices[-1] = made._replace(id=instance.id).as_json()
        entry.write()
        visible = slices.create_compute_instance(board, profile, instance)
        own = {**facts, "mig.slice": str(place), "mig.uuid": visible}
        seats.append(
            _make_seat((board._replace(visible=visible, slice=profile.name),), way, {}, own)
        )
    return tuple(seats)


def _check_whole(found: tuple[Board, ...]) -> None:
    """Refuse a GPU in MIG mode: a process would see one slice of it, or nothing."""
    for board in found:
        if not board.slice and slices.mode_is_on(board):
            raise CollocationError(
                f"{board.uuid} is in MIG mode, where no run gets all of it",
                "Name a MIG profile, or the UUID of a slice that is there as the device.",
            )


def _find_profile(board: Board, way: Sharing, known: tuple[slices.Profile, ...]) -> slices.Profile:
    by_name = {profile.name: profile for profile in known}
    if way.profile not in by_name:
        raise UnknownNameError.of(f"MIG profile of {board.uuid}", way.profile, by_name)
    return by_name[way.profile]


def _arrange_slices(
    board: Board,
    chosen: list[slices.Profile],
    known: tuple[slices.Profile, ...],
    there: tuple[Placement, ...],
) -> tuple[Placement, ...]:
    every = [place for profile in known for place in slices.possible_placements(board, profile)]
    names = [profile.name for profile in chosen]
    found = arrange(names, every, there)
    if found is None or any(names.count(profile.name) > profile.most for profile in chosen):
        beside = f" beside {', '.join(map(str, there))}, which is left" if there else ""
        raise CollocationError(
            f"{' + '.join(names)} does not fit on {board.uuid}{beside}",
            "Take smaller profiles or fewer runs: `dippm mig plan` says which fit together.",
        )
    return found


def _facts(found: tuple[Board, ...], ways: tuple[Sharing, ...]) -> dict[str, str]:
    seen = [str(neighbour) for board in found for neighbour in neighbours(board)]
    return {
        "sharing": " + ".join(str(way) or "none" for way in ways),
        "seats": str(len(ways)),
        "neighbours": ", ".join(seen) or "none",
    }


def _make_seat(
    found: tuple[Board, ...], way: Sharing, more: dict[str, str], facts: dict[str, str]
) -> Seat:
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(board.visible for board in found)}
    uuids = tuple(board.uuid for board in found)
    profile = found[0].slice if len(found) == 1 else ""
    return Seat({**visible, **more}, uuids, profile, str(way), facts)


def _release(entry: Entry, *, failing: bool) -> None:
    with defer_signals():
        result = undo_entry(entry)
    if result.changed:
        warnings.warn("; ".join(result.changed), CollocationWarning, stacklevel=4)
    if not result.left:
        return
    if failing:  # do not replace the original error
        warnings.warn("; ".join(result.left), CollocationWarning, stacklevel=4)
    else:
        raise CollocationError("; ".join(result.left), AGAIN)


# Termination signals: changes to devices are undone before this process ends.


ENDING = (signal.SIGTERM, signal.SIGHUP)
HELD = (signal.SIGINT, *ENDING)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn default termination signals into `SystemExit(128 + number)`.

    Own handlers and ignored signals stay; so does everything outside of the main thread, where no
    handler can be set.
    """
    mine: list[int] = []
    if threading.current_thread() is threading.main_thread():
        mine = [n for n in ENDING if signal.getsignal(n) is signal.SIG_DFL]
        for number in mine:
            signal.signal(number, _end_on_signal)
    try:
        yield
    finally:
        for number in mine:
            if signal.getsignal(number) is _end_on_signal:
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer signals that would interrupt the cleanup; they are raised again after it.

    Python's handlers run in the main thread only, so in other threads there is nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in HELD}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for late in dict.fromkeys(came):
            signal.raise_signal(late)


def _end_on_signal(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
