"""A row that a command line spells instead of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.runs.plans.orders import ALWAYS, command_of
from dippm.runs.plans.row import read_listeners, settings_of
from dippm.runs.tracking.listeners import sources_of, split_profiler
from dippm.runs.tracking.order import RunOrder, checked

GPU = "nvml"


def order_of_words(
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
) -> RunOrder:
    """Return the order of a command with its arguments.

    Args:
        words: a Python file or a program, and its arguments, which stay as they are.
        experiment: what runs are gathered under.
        workload: runs that belong together share one, which is their group.
        devices: GPUs by index or UUID.
        sharing: how they are shared, "" for not at all.
        listeners: names joined by "+"; "" for those that work here, "-" for the run's tree only.
        name: of the run; "" for the command.
        timeout_s: it is ended after so long; 0 for no limit.
        hz: samples per second.
        store: URI, "" for the usual one.
        json: one line about the run on stdout when it has ended.

    Raises:
        PlanError: if there is no such file or program.
        ListenerError: if a listener cannot work here; `UnknownNameError` if there is none.
    """
    named, profiler = split_profiler(read_listeners(listeners))
    if listeners and (named or not profiler):
        metrics = sources_of(named, devices=devices or ("0",))
    else:
        metrics = _working(devices)
    tags = {"workload": workload, "devices": "+".join(devices), "collocation": sharing}
    return checked(
        RunOrder(
            command=command_of(words[0], words[1:], whole=True),
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
    """Return the sources of GPUs if there is one: nobody asked, so nothing has to work."""
    from dippm.measure.sources.calls import NotHere
    from dippm.measure.sources.nvml_session import Session

    try:
        Session.open()
    except NotHere:
        return ()
    Session.close()
    return tuple(f"{GPU}:{device}" for device in devices) if len(devices) > 1 else (GPU,)
