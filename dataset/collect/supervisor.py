"""The supervisor: takes the plan point by point, has each measured, keeps every outcome."""

from __future__ import annotations

import glob
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dataset.collect.campaign import Campaign
from dataset.collect.errors import CollectError, Stop
from dataset.collect.locks import lock_device, lock_folder
from dataset.collect.pace import Pace
from dataset.collect.progress import Progress, progress
from dataset.collect.rows import make_row
from dataset.collect.runner import JOBS_PER_WORKER, Runner
from dataset.collect.store import Store, tell
from dataset.collect.worker_process import WorkerOptions, WorkerProcess
from dataset.configuration import Job, Point, configuration_id
from dippm.measure.columns import Status
from dippm.measure.protocol import Settings

RAPL = "/sys/class/powercap/intel-rapl:*/energy_uj"
CPU_SHARE = 0.8
"""Of the memory that is available at the start: the host must survive the largest model."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a campaign runs.

    Attributes:
        folder: where rows go.
        device: as torch names it.
        settings: of the measurement.
        timeout_s: for building a model and measuring a point.
        budget_s: for the campaign; None for no limit.
        limit: points at most; None for no limit.
        retry_failed: whether points without a measurement are tried again.
        disk_wait_s: how long a full disk is waited for.
        jobs_per_worker: after so many jobs a worker is replaced.
        memory_limit_mb: for the data of a worker on a CPU; None for most of what is free.
        families: extra registry modules.
        bench: "module:Class" in place of `dippm.measure.run:Bench`.
    """

    folder: Path
    device: str
    settings: Settings = field(default_factory=Settings)
    timeout_s: float = 60.0
    budget_s: float | None = None
    limit: int | None = None
    retry_failed: bool = False
    disk_wait_s: float = 60.0
    jobs_per_worker: int = JOBS_PER_WORKER
    memory_limit_mb: int | None = None
    families: tuple[str, ...] = ()
    bench: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """A job with what is left of it.

    Attributes:
        job: as planned.
        points: without an outcome, in order.
        known: statuses of the others.
    """

    job: Job
    points: tuple[Point, ...]
    known: Mapping[Point, Status]


def collect(jobs: Sequence[Job], options: Options, plan: Mapping[str, Any]) -> Campaign:
    """Measure what has no outcome yet, until the plan or the budget ends or somebody interrupts.

    Args:
        jobs: of the plan.
        options: how.
        plan: what the campaign file says about the plan.

    Returns:
        The campaign, ended; its file is written.

    Raises:
        LockedError: if another collector uses the folder or the device.
        CollectError: if the folder cannot be used.
    """
    pace = Pace(timeout_s=options.timeout_s, budget_s=options.budget_s, limit=options.limit)
    make_folder(options.folder)
    with lock_folder(options.folder), lock_device(options.device) as device_lock:
        options = replace(options, settings=possible(options.settings, options.device))
        campaign = Campaign(
            plan, options.device, options.settings, options.timeout_s, options.budget_s
        )

        def start() -> WorkerProcess:
            return WorkerProcess(worker_options(options), (device_lock.handle,))

        runner = Runner(
            start,
            pace=pace,
            energy_window_s=options.settings.energy_window_s,
            jobs_per_worker=options.jobs_per_worker,
        )

        def measure(pending: Sequence[Pending], keep: Keep) -> None:
            for item in pending:
                for outcome in runner.outcomes(item.job, item.points, item.known):
                    keep(item.job, outcome)

        with interruptible(pace):
            try:
                run(jobs, options, campaign, measure=measure, pace=pace)
            finally:
                runner.kill()
    return campaign


Keep = Callable[[Job, Any], None]
Measure = Callable[[Sequence[Pending], Keep], None]


def run(
    jobs: Sequence[Job], options: Options, campaign: Campaign, *, measure: Measure, pace: Pace
) -> None:
    """Have the pending jobs measured and keep the outcomes; note in the campaign how it ended.

    Args:
        jobs: of the plan.
        options: how.
        campaign: is filled in and written.
        measure: calls its second argument with each outcome.
        pace: of the campaign.
    """
    store = Store(options.folder, say=tell, wait_s=options.disk_wait_s)
    pending = list(pending_of(jobs, store, retry_failed=options.retry_failed))
    total = sum(len(item.points) for item in pending)
    planned = sum(len(job.points) for job in jobs)
    campaign.left, campaign.skipped_as_done = total, planned - total
    write_campaign(campaign, options.folder)
    shown = progress(total)
    shown.say(f"{total} points to measure, {planned - total} have an outcome already")
    began = time.monotonic()

    def keep(job: Job, outcome: Any) -> None:
        row = make_row(campaign.campaign, kind_of(job, options.families), job.workload, outcome)
        store.append(row)
        if not campaign.machine and row["device"]:
            note_machine(campaign, row, options.folder)
        campaign.statuses[row["status"]] += 1
        campaign.left -= 1
        campaign.seconds = time.monotonic() - began
        shown.row(row)

    _until_end(campaign, lambda: measure(pending, keep), shown)
    campaign.seconds = time.monotonic() - began
    store.close()
    shown.close()
    write_campaign(campaign, options.folder)


def pending_of(jobs: Sequence[Job], store: Store, *, retry_failed: bool) -> Iterator[Pending]:
    """Yield what has no outcome yet; a point that the plan lists twice is measured once."""
    seen = set()
    for job in jobs:
        known: dict[Point, Status] = {}
        points = []
        for point in job.points:
            key = (configuration_id(job.workload, point), point.repeat)
            status = store.statuses.get(key)
            if status == "ok" or (status is not None and not retry_failed):
                known[point] = status  # type: ignore[assignment]
            elif key not in seen:
                points.append(point)
            seen.add(key)
        if points:
            yield Pending(job, tuple(points), known)


def possible(settings: Settings, device: str) -> Settings:
    """Return the settings without an energy window where no energy can be read."""
    if device.startswith("cuda") or any(os.access(path, os.R_OK) for path in glob.glob(RAPL)):
        return settings
    return replace(settings, energy_window_s=0.0)


def worker_options(options: Options) -> WorkerOptions:
    """Return what a worker is started with."""
    limit_mb = 0
    if not options.device.startswith("cuda"):
        limit_mb = options.memory_limit_mb or int(available_mb() * CPU_SHARE)
    log = options.folder / "worker.log"
    return WorkerOptions(
        options.device,
        families=options.families,
        bench=options.bench,
        settings=options.settings,
        memory_limit_mb=limit_mb,
        log=log,
    )


def available_mb() -> float:
    """Return the memory in MiB that is free for a worker, within the limit of the container."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = next(line for line in lines if line.startswith("MemAvailable:"))
    available = int(found.split()[1]) / 1024
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return min(available, (int(most) - used) / 2**20) if most.isdigit() else available


def make_folder(folder: Path) -> None:
    """Make the output folder.

    Raises:
        CollectError: if it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CollectError(f"{folder} cannot be made: {error.strerror}") from error


def write_campaign(campaign: Campaign, folder: Path) -> None:
    """Write the campaign's file; if that fails say so and go on: the rows matter more."""
    try:
        campaign.write(folder)
    except OSError as error:
        tell(f"the campaign file could not be written: {error}")


def note_machine(campaign: Campaign, row: Mapping[str, Any], folder: Path) -> None:
    """Keep where the first row was measured."""
    from dataset.collect.rows import where

    campaign.machine = where(row)
    campaign.commit = row["commit"]
    write_campaign(campaign, folder)


def kind_of(job: Job, families: Sequence[str]) -> str:
    """Return "operator" or "model"."""
    from importlib import import_module

    for name in (*families, "dataset.families.registry"):
        registry = import_module(name)
        for table in ("FAMILIES", "OPERATORS"):
            family = getattr(registry, table, {}).get(job.workload.family)
            if family is not None:
                return str(family.kind)
    return "model"


@contextmanager
def interruptible(pace: Pace) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the campaign in order."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda got, _: pace.interrupt(got)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _until_end(campaign: Campaign, work: Callable[[], None], shown: Progress) -> None:
    try:
        work()
    except Stop as stop:
        campaign.end(stop.why)
    except CollectError as error:
        campaign.end(error.ended, str(error))
        shown.say(str(error))
    else:
        campaign.end("finished")
