"""Execute a plan on several nodes through Ray: a workload runs on the node with free GPUs.

Each workload is a task that owns as many GPUs as its rows name; Ray assigns them, and they replace
those that the plan names. The current folder and this package have the same paths on every node.
If a task ends early, its rows end too, since they watch the process that runs them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import dippm
from dippm.base.process.cluster import join
from dippm.errors import DippmError, PlanError
from dippm.runs.plans.executor import Interrupts, WorkloadExecutor
from dippm.runs.plans.journal import Journal
from dippm.runs.plans.options import PlanObserver, PlanOptions
from dippm.runs.plans.row import PlanRow, Status
from dippm.runs.plans.row_selection import check
from dippm.runs.plans.table import StatusWriter
from dippm.runs.plans.workload import Workload

POLL_S = 0.2
MOST_LINES = 1000
"""Most lines of output of a workload that are returned, the last ones."""
HANDED_ON = ("DIPPM_", "MLFLOW_", "XDG_STATE_HOME")


class RemoteJob(NamedTuple):
    """A workload sent to a node.

    Attributes:
        workload: workload of the plan.
        numbers: numbers of the rows to run.
        plan: path of the plan.
        group: name that groups the runs.
        folder: working directory.
        options: options of the plan.
    """

    workload: Workload
    numbers: tuple[int, ...]
    plan: Path
    group: str
    folder: str
    options: PlanOptions

    @property
    def gpus(self) -> int:
        """Number of GPUs that it needs."""
        return len({device for row in self.workload.rows for device in row.devices})


class JobReport(NamedTuple):
    """The result of a job.

    Attributes:
        rows: status, uuid and seconds of each row that was started or refused, by number.
        lines: printed lines, each with the name of its run.
        remarks: remarks for the user.
    """

    rows: Mapping[int, tuple[Status, str, float]]
    lines: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]


class _JobLog:
    """The writer and observer of a job, which collects everything for its report."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Status, str, float]] = {}
        self.lines: deque[tuple[str, str]] = deque(maxlen=MOST_LINES)
        self.remarks: list[str] = []

    def write(self, changes: Mapping[int, tuple[Status, str]]) -> None:
        for number, (status, run) in changes.items():
            self.rows[number] = (status, run, 0.0)

    def line(self, name: str, text: str) -> None:
        self.lines.append((name, text))

    def say(self, text: str) -> None:
        self.remarks.append(text)

    def became(self, row: PlanRow, status: Status, seconds: float) -> None:
        self.rows[row.number] = (status, self.rows.get(row.number, (status, ""))[1], seconds)


def run_remote_job(job: RemoteJob) -> JobReport:
    """Execute a workload on the node that it was sent to."""
    import ray

    os.chdir(job.folder)
    os.environ.pop("OMP_NUM_THREADS", None)  # set by Ray for its own workers
    workload = on_devices(job.workload, [str(gpu) for gpu in ray.get_gpu_ids()])
    rows = tuple(row for row in workload.rows if row.number in job.numbers)
    notes = _JobLog()
    try:
        check(rows, job.plan)
    except DippmError as error:
        notes.say(f"{os.uname().nodename}: {error.message}")
        notes.write({row.number: (Status("FAILED", "node"), "") for row in rows})
        return JobReport(notes.rows, (), tuple(notes.remarks))
    with Journal.of_this_process() as journal, Interrupts() as interrupts:
        WorkloadExecutor(
            workload,
            rows,
            plan=job.plan,
            group=job.group,
            options=job.options,
            writer=notes,
            journal=journal,
            interrupts=interrupts,
            observer=notes,
        ).run()
    return JobReport(notes.rows, tuple(notes.lines), tuple(notes.remarks))


def on_devices(workload: Workload, gpus: list[str]) -> Workload:
    """Return a workload with its devices replaced by those of the node, in the plan's order.

    The letters stay those of the plan, so names of runs do not depend on the node.
    """
    named = dict.fromkeys(device for row in workload.rows for device in row.devices)
    given = dict(zip(named, gpus, strict=True)) if named else {}
    rows = tuple(
        row._replace(devices=tuple(given[device] for device in row.devices))
        for row in workload.rows
    )
    return workload._replace(rows=rows)


class Cluster:
    """A Ray cluster that executes jobs.

    Args:
        address: "auto" for the cluster running here, "local" for a new one.

    Raises:
        PlanError: if Ray is not installed, or the cluster does not exist.
    """

    def __init__(self, address: str) -> None:
        kept = {name: text for name, text in os.environ.items() if name.startswith(HANDED_ON)}
        package = Path(dippm.__file__).resolve().parents[1]
        try:
            self._ray = join(address, package, environment=kept)
        except ImportError as error:
            raise PlanError("Ray is not installed", "pip install 'dippm[ray]'") from error
        except ConnectionError as error:
            hint = 'Start one (`ray start --head`), or use ray="local".'
            raise PlanError(str(error), hint) from error

    def leave(self) -> None:
        """Disconnect; a local cluster is shut down."""
        self._ray.shutdown()

    def check(self, jobs: list[RemoteJob]) -> None:
        """Refuse jobs that would wait for ever.

        Raises:
            PlanError: if no node has as many GPUs as a workload needs.
        """
        most = max(
            (int(node["Resources"].get("GPU", 0)) for node in self._ray.nodes() if node["Alive"]),
            default=0,
        )
        for job in jobs:
            if job.gpus > most:
                name = f"workload {job.workload.experiment}/{job.workload.name}"
                what = f"{name} needs {job.gpus} GPUs on one node, and no node has more than"
                raise PlanError(f"{what} {most}", "Name fewer devices in its rows, or - for none.")

    def carry_out(
        self,
        jobs: list[RemoteJob],
        writer: StatusWriter,
        interrupts: Interrupts,
        observer: PlanObserver,
    ) -> list[int]:
        """Execute all jobs; return the numbers of the rows that were started."""
        do = self._ray.remote(run_remote_job)
        waiting = {
            do.options(num_cpus=1, num_gpus=job.gpus, max_retries=0).remote(job): job
            for job in jobs
        }
        began: list[int] = []
        asked, ask_at = 0, float("inf")
        while waiting:
            ready, _ = self._ray.wait(list(waiting), timeout=POLL_S)
            for key in ready:
                began += self._take(key, waiting.pop(key), writer, observer, asked > 0)
            if min(interrupts.count, 2) > asked or time.monotonic() > ask_at:
                asked += 1
                ask_at = float("inf") if asked > 1 else time.monotonic() + 60
                for key in waiting:
                    self._ray.cancel(key, force=asked > 1)
        return began

    def _take(
        self, key: Any, job: RemoteJob, writer: StatusWriter, observer: PlanObserver, asked: bool
    ) -> list[int]:
        try:
            report = self._ray.get(key)
        except self._ray.exceptions.TaskCancelledError:
            return []  # it was never started
        except self._ray.exceptions.RayError as error:
            status = Status("INTERRUPTED" if asked else "LOST")
            lost = str(error).strip().splitlines()[-1][:200]
            observer.say(f"workload {job.workload.name}: {status}: {lost}")
            writer.write(dict.fromkeys(job.numbers, (status, "")))
            return list(job.numbers)
        for line in report.lines:
            observer.line(*line)
        for remark in report.remarks:
            observer.say(remark)
        writer.write({number: noted[:2] for number, noted in report.rows.items()})
        for number, (status, _, seconds) in report.rows.items():
            observer.became(writer.row(number), status, seconds)
        return list(report.rows)
