"""`Options`: the options of a campaign, and values derived from them on a host."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from dataset.collect.locks import Lock
from dataset.collect.pace import Pace
from dataset.collect.process.worker_process import WorkerOptions, WorkerProcess
from dataset.collect.runner import JOBS_PER_WORKER, Runner
from dippm.measure.protocol import Settings

RAPL = "/sys/class/powercap/intel-rapl:*/energy_uj"
CPU_SHARE = 0.8
"""Share of the available memory that a worker may use, so that the host stays responsive."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a campaign.

    Attributes:
        folder: output folder.
        device: torch's name of the device.
        settings: settings of the measurement.
        timeout_s: time limit for building a model, and for measuring a point.
        budget_s: time limit of the campaign; None for none.
        limit: maximum number of points; None for none.
        retry_failed: whether points without a measurement are tried again.
        disk_wait_s: maximum time to wait for space on a full disk.
        jobs_per_worker: number of jobs after which a worker is replaced.
        memory_limit_mb: memory limit of a worker on a CPU; None for most of the free memory.
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


def feasible_settings(settings: Settings, device: str) -> Settings:
    """Return the settings, without an energy window if energy cannot be read."""
    if device.startswith("cuda") or any(os.access(path, os.R_OK) for path in glob.glob(RAPL)):
        return settings
    return replace(settings, energy_window_s=0.0)


def worker_options(options: Options) -> WorkerOptions:
    """Return the options of a worker."""
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
    """Return the memory available to a worker in MiB, within the limit of the container."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = next(line for line in lines if line.startswith("MemAvailable:"))
    available = int(found.split()[1]) / 1024
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return min(available, (int(most) - used) / 2**20) if most.isdigit() else available


def new_runner(options: Options, pace: Pace, device_lock: Lock) -> Runner:
    """Return the runner of a campaign on this host."""

    def start() -> WorkerProcess:
        return WorkerProcess(worker_options(options), (device_lock.handle,))

    return Runner(
        start,
        pace=pace,
        energy_window_s=options.settings.energy_window_s,
        jobs_per_worker=options.jobs_per_worker,
    )
