"""One command that shares a device, without a plan: seated, run in the foreground, undone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from dippm.base.boot import boot
from dippm.runs.colocation import seated
from dippm.runs.plans.journal import Journal
from dippm.runs.tracking.order import RunOrder, in_memory

HANDED_ON = (signal.SIGTERM, signal.SIGHUP)


def environment_on(devices: Sequence[str]) -> dict[str, str]:
    """Return the variables of a process that uses some devices alone, which takes no undoing.

    Raises:
        CollocationError: if there is no such device.
    """
    with Journal.of_this_process() as journal, seated(devices, journal=journal.seats()) as (seat,):
        return dict(seat.environment)


def run_seated(order: RunOrder, devices: Sequence[str], sharing: str) -> int:
    """Run a command that shares devices, as `dippm run` does, and leave them as they were.

    Returns:
        The exit code of the command.

    Raises:
        CollocationError: if the devices cannot be shared so, or cannot be restored.
        UnknownNameError: if there is no such MIG profile.
    """
    with (
        Journal.of_this_process() as journal,
        seated(devices, sharing, journal=journal.seats()) as (seat,),
    ):
        order = order._replace(
            device=(seat.visible or (order.device,))[0], tags={**order.tags, **seat.facts}
        )
        return _in_the_foreground(order, {**os.environ, **seat.environment})


def _in_the_foreground(order: RunOrder, environment: dict[str, str]) -> int:
    """Wait for the small process that runs an order in our group: Ctrl-C reaches it by itself.

    A signal that is ignored, as under nohup, stays so, for the command too.
    """
    held = in_memory(order)
    follow = f"from dippm.base.process import follow_parent; follow_parent({os.getpid()}, 15)"
    run = f"{follow}; from dippm.runs.tracking.command import main; main({held}, False)"
    before = {number: signal.getsignal(number) for number in (*HANDED_ON, signal.SIGINT)}
    before = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    if signal.SIGINT in before:
        signal.signal(signal.SIGINT, lambda *_: None)  # not ignored: the command would inherit that
    words = [sys.executable, "-P", "-c", boot(run), *order.command[:1]]
    with subprocess.Popen(words, env=environment, pass_fds=(held,)) as process:
        os.close(held)

        def hand_on(number: int, _: FrameType | None) -> None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

        for number in before.keys() & set(HANDED_ON):
            signal.signal(number, hand_on)
        try:
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return code if code >= 0 else 128 - code
