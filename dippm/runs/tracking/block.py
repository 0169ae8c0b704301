"""`track`: record a block of a program as a run, sampled by another process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import End, Moment, RunStatus
from dippm.runs.tracking.run import JOIN_VARIABLE, Run, enter, leave
from dippm.runs.tracking.run_config import RunConfig, checked, new_start
from dippm.runs.tracking.sidecar_spawn import Sidecar, start_sampler

if TYPE_CHECKING:
    from dippm.runs.store.record import Start


@contextmanager
def track(
    name: str = "",
    *,
    experiment: str = "",
    store: str | None = None,
    metrics: Iterable[str] = ("tree",),
    hz: float = 10.0,
    device: str | int = "0",
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
    description: str = "",
    prediction: Any = None,
) -> Iterator[Run]:
    """Record a block as a run: what it logs, and samples of this process and its children.

    >>> with track("training", params={"lr": 0.1}) as run:  # doctest: +SKIP
    ...     with run.span("epoch"):
    ...         run.log("loss", 0.5, step=1)

    A sidecar process samples, and attaches the run to the store when the block ends: nothing heavy
    is loaded here. If nothing can be recorded, the block runs anyway, and a line on stderr gives
    the reason. A block that ends with an exception is a failed run.

    Args:
        name: name of the run; by default that of the program.
        experiment: name of the experiment that groups runs.
        store: URI of the store, by default MLFLOW_TRACKING_URI or a file of the user's.
        metrics: sources to sample, each with "@HZ" if it is to be read less often; () for none,
            which starts no process before the end.
        hz: samples per second.
        device: device for sources of a GPU: index, UUID, or "cuda:N" in torch's numbering.
        params: settings of the workload.
        tags: free text by name.
        description: one sentence.
        prediction: a `Prediction` of the same work, or its `to_dict()`.

    Raises:
        RunError: if `hz` or a rate in `metrics` is invalid.
        UnknownNameError: if a source does not exist.
    """
    config = checked(RunConfig((), metrics=tuple(metrics), hz=hz, device=_device(device)))
    start = new_start(
        name=name or os.path.basename(sys.argv[0] or "python"),
        experiment=experiment,
        store=store or "",
        description=description,
        params=_texts(params),
        tags=_texts(tags),
        prediction=prediction.to_dict() if hasattr(prediction, "to_dict") else prediction,
    )
    run, sidecar = _begin(start, config)
    before = enter(run)
    owner = os.getpid()
    status: RunStatus = "finished"
    error = ""
    try:
        yield run
    except BaseException as problem:
        status = "interrupted" if isinstance(problem, KeyboardInterrupt) else "failed"
        error = f"{type(problem).__name__}: {problem}"
        raise
    finally:
        leave(run, before)
        if os.getpid() == owner:  # a child forked inside the block must not end the run
            with contextlib.suppress(OSError):
                _end(run, sidecar, End(status, Moment.now(), error=error))
        run.close()


def _begin(start: Start, config: RunConfig) -> tuple[Run, Sidecar | None]:
    outer = os.environ.get(JOIN_VARIABLE)
    if outer and not start.group:
        start = start._replace(group=os.path.basename(outer))
    try:
        folder = RunFolder.create(start)
    except OSError as error:
        trouble = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"dippm: this run is not recorded: {trouble}\n")
        return Run(start.uuid, None, trouble), None
    run = Run(start.uuid, folder)
    try:
        sidecar = start_sampler(
            folder.path, config, pid=os.getpid(), program=sys.executable, cwd=start.folder
        )
        return run, sidecar
    except OSError as error:
        run.tag("trouble", f"no samples: {error}")
        return run, None


def _end(run: Run, sidecar: Sidecar | None, end: End) -> None:
    if run.path is None:
        return
    if sidecar is not None:
        sidecar.wait_until_ready()
        sidecar.stop()
        if not sidecar.wait_until_ended() and sidecar.trouble:
            run.tag("trouble", sidecar.trouble)
    if run.lost_events:
        run.tag("lost_events", f"{run.lost_events}: {run.trouble}")
    try:
        run.finish(end)
    finally:
        if sidecar is not None:
            sidecar.close()


def _texts(given: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in (given or {}).items()}


def _device(device: str | int) -> str:
    if not str(device).startswith("cuda"):
        return str(device)
    from dippm.measure.sources.nvml_session import torch_uuid

    # The sidecar imports no torch, so it could not resolve the device.
    return torch_uuid(int(str(device).partition(":")[2] or 0)) or str(device)
