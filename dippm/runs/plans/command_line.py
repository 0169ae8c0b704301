"""A row given on the command line instead of in a plan."""

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
from dippm.runs.plans.row import read_listeners, settings_of
from dippm.runs.plans.run_configs import ALWAYS, resolve_command
from dippm.runs.tracking.listeners import sources_of, split_profiler
from dippm.runs.tracking.run_config import RunConfig, checked, write_to_memory

GPU = "nvml"


def run_config_of_words(
    words: Sequence[str],
    *,
    experiment: str = "",
    workload: str = "",
    devices: tuple[str, ...] = (),
    sharing: str = "",
    listeners: str = "",
    name: str = "",
    timeout_s: float = 0.0,
    hz: float = 10.0,
    store: str = "",
    json: bool = False,
) -> RunConfig:
    """Return the run configuration of a command with its arguments.

    Args:
        words: a Python file or a program, and its arguments, which are not changed.
        experiment: name of the experiment that groups runs.
        workload: group of the run.
        devices: GPUs by index or UUID.
        sharing: way of sharing the devices, "" for none.
        listeners: names joined by "+"; "" for those that work here, "-" for the process tree only.
        name: name of the run; "" for the command.
        timeout_s: time limit; 0 for none.
        hz: samples per second.
        store: URI of the store, "" for the default one.
        json: whether one line of JSON about the run is printed on stdout at the end.

    Raises:
        PlanError: if there is no such file or program.
        ListenerError: if a listener cannot work here; `UnknownNameError` if it does not exist.
    """
    named, profiler = split_profiler(read_listeners(listeners))
    if listeners and (named or not profiler):
        metrics = sources_of(named, devices=devices or ("0",))
    else:
        metrics = _working(devices)
    tags = {"workload": workload, "devices": "+".join(devices), "collocation": sharing}
    return checked(
        RunConfig(
            command=resolve_command(words[0], words[1:], whole=True),
            name=name,
            experiment=experiment,
            store=store,
            metrics=(*ALWAYS, *(metric for metric in metrics if metric not in ALWAYS)),
            hz=hz,
            device=(devices or ("0",))[0],
            params=settings_of(tuple(words[1:])),
            tags={name: text for name, text in tags.items() if text},
            timeout_s=timeout_s,
            json=json,
            profile=profiler,
            group=workload,
        )
    )


def _working(devices: tuple[str, ...]) -> tuple[str, ...]:
    """Return the GPU sources that work here; none were requested, so none are required."""
    from dippm.measure.sources.calls import NotHere
    from dippm.measure.sources.nvml_session import Session

    try:
        Session.open()
    except NotHere:
        return ()
    Session.close()
    return tuple(f"{GPU}:{device}" for device in devices) if len(devices) > 1 else (GPU,)


# A single command on shared devices: allocate, run in the foreground, undo.


HANDED_ON = (signal.SIGTERM, signal.SIGHUP)


def environment_on(devices: Sequence[str]) -> dict[str, str]:
    """Return the environment of a process that uses devices alone; nothing has to be undone.

    Raises:
        CollocationError: if there is no such device.
    """
    with Journal.of_this_process() as journal, seated(devices, journal=journal.seats()) as (seat,):
        return dict(seat.environment)


def run_seated(config: RunConfig, devices: Sequence[str], sharing: str) -> int:
    """Run a command on shared devices, as `dippm run` does, and restore the devices.

    Returns:
        The exit code of the command.

    Raises:
        CollocationError: if the devices cannot be shared this way, or cannot be restored.
        UnknownNameError: if there is no such MIG profile.
    """
    with (
        Journal.of_this_process() as journal,
        seated(devices, sharing, journal=journal.seats()) as (seat,),
    ):
        config = config._replace(
            device=(seat.visible or (config.device,))[0], tags={**config.tags, **seat.facts}
        )
        return _in_the_foreground(config, {**os.environ, **seat.environment})


def _in_the_foreground(config: RunConfig, environment: dict[str, str]) -> int:
    """Wait for the small process that runs the command in our group, where Ctrl-C reaches it.

    An ignored signal, as under nohup, stays ignored, for the command too.
    """
    held = write_to_memory(config)
    follow = f"from dippm.base.process import follow_parent; follow_parent({os.getpid()}, 15)"
    run = f"{follow}; from dippm.runs.tracking.command import main; main({held}, False)"
    before = {number: signal.getsignal(number) for number in (*HANDED_ON, signal.SIGINT)}
    before = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    if signal.SIGINT in before:
        signal.signal(signal.SIGINT, lambda *_: None)  # a handler: SIG_IGN would be inherited
    words = [sys.executable, "-P", "-c", boot(run), *config.command[:1]]
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
