"""The sidecar of a run: samples it, then hands its finished folder to the store.

Attaching waits until nothing on this machine is measured: `dippm.runs.store.attach_lock`.

The sidecar has its own session and is no child of the workload, so it survives the end of the
process that started it and the signals of the terminal. Warnings of `Warner` go to the stderr of
its owner, which is held only while sampling. The two exchange lines over two pipes:

    sidecar: ready PID                   owner: watch PID    (unless the config names it)
    sidecar: sampling
    sidecar: ended | failed REASON       owner: closed       (end.json is written)
                                         owner: closed now   (and it waits for the store)

If the owner's pipe closes without "closed", it was killed: the run is marked lost, samples stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dippm.errors import DippmError
from dippm.measure.readings import Readings
from dippm.measure.sampler import Sampler, parse
from dippm.runs.store.attach_lock import (
    PATIENCE_S,
    claim_turn,
    hold_live,
    lower_priority,
    request_attach,
    wait_until_quiet,
)
from dippm.runs.store.folder import END, RunFolder
from dippm.runs.store.record import End, Moment
from dippm.runs.tracking.sidecar_spawn import ATTACH_VARIABLE, CLOSED, CLOSED_NOW, HEAR, SAY, TALK
from dippm.runs.tracking.warner import Warner

LOST = "the process that ran it was killed"
ENVIRONMENT_S = 60


def main(text: str) -> None:
    """Keep a run as a JSON `SidecarConfig` says; see `dippm.runs.tracking.sidecar_spawn`."""
    config: dict[str, Any] = json.loads(text)
    # Inherited pipes of other processes would otherwise stay open as long as this process.
    os.closerange(TALK + config["talks"], os.sysconf("SC_OPEN_MAX"))
    with contextlib.suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    live = hold_live()
    folder = Path(config["folder"])
    owner = _open_pidfd(config["owner"])
    facts = _record_environment(folder, config) if config["program"] else 0
    _say(f"ready {os.getpid()}")
    pid = config["pid"] or _read_pid(owner)
    if pid and config["sources"]:
        _sample(config, pid)
    else:
        _say("ended")
    if config["talks"]:
        os.close(TALK)
    last = _wait_for_owner(owner)
    if not (folder / END).exists():
        with contextlib.suppress(OSError):
            RunFolder(folder).end(End("lost", Moment.now(), error=LOST))
    if facts:
        os.waitpid(facts, 0)
    if live is not None:
        os.close(live)
    _attach(folder, now=last == CLOSED_NOW)


def _sample(config: dict[str, Any], pid: int) -> None:
    words = ["--pid", str(pid), "--out", config["out"], "--hz", str(config["hz"])]
    words += ["--sources", ",".join(config["sources"]), "--device", str(config["device"])]
    if config["owner"] != pid:  # a runner, which adopts orphans of its command
        words += ["--adopter", str(config["owner"])]
    try:
        warner = Warner(Path(config["folder"]), TALK if config["talks"] else None)
        sampler = Sampler(parse(words), _disable_after_error(warner.look))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        _say("sampling")
        sampler.run()
    except (OSError, ValueError, DippmError) as error:
        _say(f"failed {error}".replace("\n", " "))
    else:
        _say("ended")


def _disable_after_error(
    look: Callable[[Mapping[str, Readings]], None],
) -> Callable[[Mapping[str, Readings]], None]:
    """Wrap a callback so that its first error disables it: sampling goes on without it."""
    failed = False

    def guarded(readings: Mapping[str, Readings]) -> None:
        nonlocal failed
        if not failed:
            try:
                look(readings)
            except Exception as error:
                failed = True
                sys.stderr.write(f"warnings: {type(error).__name__}: {error}\n")

    return guarded


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the reader may be gone
        os.write(SAY, f"{line}\n".encode(errors="replace"))


def _read_pid(owner: int | None) -> int:
    """Return the process to sample; 0 if the owner has gone or started none."""
    line = _read_line(owner)
    return int(line.partition(" ")[2]) if line.startswith("watch ") else 0


def _wait_for_owner(owner: int | None) -> str:
    """Return the owner's last line, "" if it was killed."""
    while (line := _read_line(owner)) and line not in (CLOSED, CLOSED_NOW):
        pass
    return line


def _read_line(owner: int | None) -> str:
    """Return the next line of the owner, "" at the end."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([HEAR, *([] if owner is None else [owner])], [], [])
        piece = os.read(HEAR, 1) if HEAR in ready else b""
        if not piece:  # children of a dead owner may still hold the pipe open
            return ""
        line += piece
    return line.decode().strip()


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _record_environment(folder: Path, config: dict[str, Any]) -> int:
    """Fork a process that records what the run depends on; return its pid."""
    child = os.fork()
    if child:
        return child
    try:
        os.closerange(HEAR, TALK + 1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.alarm(ENVIRONMENT_S)
        from dippm.runs.tracking.environment import commit, host, packages

        events = RunFolder(folder)
        events.settings(environment={**host(), **packages(config["program"])})
        events.settings(environment=commit(config["cwd"]))
    except BaseException as error:
        sys.stderr.write(f"environment: {type(error).__name__}: {error}\n")
    finally:
        os._exit(0)


def _attach(folder: Path, *, now: bool) -> None:
    """Become the process that attaches the run to the store, unless another one does so already.

    Args:
        folder: folder of the run.
        now: whether the owner waits for the run to be in the store.
    """
    from importlib.util import find_spec

    from dippm.base.boot import boot_module

    os.close(HEAR)
    os.close(SAY)
    wanted = os.environ.get(ATTACH_VARIABLE)
    if wanted == "no" or find_spec("dippm.runs.store.attach") is None:
        return
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    words = [sys.executable, "-P", "-c", boot_module("dippm.runs.store.attach")]
    if not now and wanted != "now":
        try:
            key = request_attach(folder)
            turn = claim_turn(folder.parent, key)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"attach: {error}\n")
            return
        if turn is None:
            return
        lower_priority()
        wait_until_quiet(time.monotonic() + PATIENCE_S)
        os.set_inheritable(turn, True)
        os.execv(sys.executable, [*words, str(folder.parent), "--key", key, "--turn", str(turn)])
    with contextlib.suppress(OSError):
        os.nice(5)  # the owner waits for it, but other processes need not
    os.execv(sys.executable, [*words, str(folder)])
