"""`sources_of`: the sources of requested listeners, checked on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from dippm.errors import ListenerError, UnknownNameError
from dippm.measure.readings import Readings
from dippm.measure.sources.registry import BUILT_IN, OF_A_GPU, OF_A_TREE, names, open_source
from dippm.runs.tracking.listeners.table import ALSO, LISTENERS, PROFILERS, Listener

BETWEEN_S = 0.1
"""Seconds between two readings of a source that compares them; dcgmi starts slowly."""
TRIES = 20
APPLE = "macmon"
ATTACHED = "ncuattach"
SHORT = len("GPU-01234567")


def sources_of(names: Sequence[str], *, devices: Sequence[str] = ("0",)) -> tuple[str, ...]:
    """Return the sources of listeners, as `RunConfig.metrics` takes them; each works here.

    Args:
        names: names of listeners as in radT: "smi", "dcgmi", "top", "free", "iostat", "ps"; several
            may be in one word ("smi+top"), with "@HZ" if they are to be read less often. Names of
            sources are passed through; "" and "-" are ignored.
        devices: index or UUID of each GPU; with several, each has its own series.

    Returns:
        Sources: "nvml", "nvml@1", or "nvml:GPU-0a1b2c3d" for one of several devices.

    Raises:
        UnknownNameError: if a listener does not exist.
        ListenerError: if a listener cannot work here, with the reason.
    """
    chosen: dict[str, str] = {}
    for word in _words(names):
        name, at, hz = word.partition("@")
        key = ALSO.get(name.casefold(), name.casefold())
        if key not in LISTENERS:
            chosen.setdefault(_known(name), f"{at}{hz}")
            continue
        for source in _that_work(key, LISTENERS[key], devices):
            chosen.setdefault(source, f"{at}{hz}")
    return tuple(f"{source}{at_hz}" for source, at_hz in chosen.items())


def check_names(names: Sequence[str]) -> None:
    """Raise for unknown listeners, without checking whether they work here.

    Raises:
        UnknownNameError: if a listener does not exist.
        ListenerError: if DIPPM does not support it.
    """
    for word in _words(names):
        name = word.partition("@")[0]
        if ALSO.get(name.casefold(), name.casefold()) not in LISTENERS:
            _known(name)


def split_profiler(names: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Split radT's names into listeners and the profiler, "" for none.

    Raises:
        ListenerError: if there are several profilers, or an unsupported one.
    """
    words = tuple(_words(names))
    profilers = [word.casefold() for word in words if word.casefold() in PROFILERS]
    if len(profilers) > 1:
        raise ListenerError(
            f"{' and '.join(profilers)} cannot both look at one run", "Give each a run of its own."
        )
    if profilers == [ATTACHED]:
        raise ListenerError(
            f"{ATTACHED} attaches to a process of others, which DIPPM does not do",
            "Name ncu: it starts the command.",
        )
    return tuple(word for word in words if word.casefold() not in PROFILERS), "".join(profilers)


def _words(names: Sequence[str]) -> Iterable[str]:
    for word in names:
        yield from (part for piece in word.split("+") if (part := piece.strip()) not in ("", "-"))


def _known(name: str) -> str:
    """Return the name of a source; raise if it is neither a source nor a listener."""
    folded = name.casefold()
    if folded in PROFILERS:
        raise ListenerError(
            f"{name} is a profiler, and no listener: it slows what it looks at",
            'Use it in a run of its own: profile="nsys".',
        )
    if folded == APPLE:
        raise ListenerError(
            "macmon reads Apple's chips, which DIPPM does not",
            'Leave it out; "top" and "free" tell of processor and memory.',
        )
    source = name.partition(":")[0]
    if source not in BUILT_IN and source not in (every := names()):
        raise UnknownNameError.of("source", source, {*LISTENERS, *every})
    return name


def _that_work(key: str, listener: Listener, devices: Sequence[str]) -> list[str]:
    several = len(devices) > 1
    found = []
    for device in devices if _of_a_gpu(listener) else devices[:1]:
        reasons: dict[str, str] = {}
        for group in listener.sources:
            for source in group:
                reason = _trial(source, device)
                if not reason:
                    apart = several and source in OF_A_GPU
                    found.append(f"{source}:{_short(device, devices)}" if apart else source)
                    break
                reasons[source] = reason
        missing = [source for source in listener.needs if source in reasons]
        if len(missing) == len(listener.needs):
            raise ListenerError(
                f"the listener {key} cannot work here"
                + (f" on device {device}: " if _of_a_gpu(listener) else ": ")
                + "; ".join(f"{source}: {reasons[source]}" for source in missing),
                "Leave it out, or mend what is missing; `dippm doctor` tells of every counter.",
            )
    return found


def _of_a_gpu(listener: Listener) -> bool:
    return any(source in OF_A_GPU for source in listener.needs)


def _trial(name: str, device: str) -> str:
    """Return why a source gives no value here; "" if it gives one."""
    where: dict[str, object] = {}
    if name in OF_A_GPU:
        where["device"] = device
    if name in OF_A_TREE:
        where["pid"] = os.getpid()
    source = open_source(name, **where)
    try:
        reading = source.read()
        for _ in range(TRIES):
            if reading.values or not _may_come(reading):
                break
            time.sleep(BETWEEN_S)
            reading = source.read()
    finally:
        source.close()
    if reading.values:
        return ""
    return next(iter(reading.absent.values()), getattr(source, "reason", "it tells nothing"))


def _may_come(reading: Readings) -> bool:
    return any("read again" in reason for reason in reading.absent.values())


def _short(device: str, devices: Sequence[str]) -> str:
    """Return a prefix of a GPU's UUID that is unique among the devices, to name its series."""
    if not device.startswith("GPU-"):
        return device
    head = device[:SHORT]
    return head if sum(other.startswith(head) for other in devices) == 1 else device
