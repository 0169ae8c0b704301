"""A plan on several nodes, through Ray: a workload goes to the node that has its devices free.

Each is a task that owns as many GPUs as its rows name; Ray says which, and they take the places of
those that the plan names. The current folder and this package lie at the same paths on every node.
Where a task ends early its rows end too, for they follow the process that runs them.
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
from dippm.runs.plans.book import Book
from dippm.runs.plans.carried_out import CarriedOut
from dippm.runs.plans.choice_of_rows import check
from dippm.runs.plans.interrupts import Interrupts
from dippm.runs.plans.journal import Journal
from dippm.runs.plans.row import Row
from dippm.runs.plans.status import Status
from dippm.runs.plans.terms import Audience, Terms
from dippm.runs.plans.workload import Workload

POLL_S = 0.2
MOST_LINES = 1000
"""Of what the rows of a workload print, the last so many come back."""
HANDED_ON = ("DIPPM_", "MLFLOW_", "XDG_STATE_HOME")


class Errand(NamedTuple):
    """A workload on its way to a node.

    Attributes:
        workload: of the plan.
        numbers: of its rows that are to be run.
        plan: the file.
        group: that its runs are recorded under.
        folder: where it is run.
        terms: how.
    """

    workload: Workload
    numbers: tuple[int, ...]
    plan: Path
    group: str
    folder: str
    terms: Terms

    @property
    def gpus(self) -> int:
        """How many GPUs it needs."""
        return len({device for row in self.workload.rows for device in row.devices})


class Report(NamedTuple):
    """What came of an errand.

    Attributes:
        rows: status, uuid and seconds of each row that was begun or refused, by number.
        lines: what they printed, with the name of each.
        remarks: what was said.
    """

    rows: Mapping[int, tuple[Status, str, float]]
    lines: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]


class _Notes:
    """The book and the audience of an errand: what they are told goes back with it."""

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

    def became(self, row: Row, status: Status, seconds: float) -> None:
        self.rows[row.number] = (status, self.rows.get(row.number, (status, ""))[1], seconds)


def do_errand(errand: Errand) -> Report:
    """Carry a workload out, on the node that it was sent to."""
    import ray

    os.chdir(errand.folder)
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray's, for its own workers
    workload = on_devices(errand.workload, [str(gpu) for gpu in ray.get_gpu_ids()])
    rows = tuple(row for row in workload.rows if row.number in errand.numbers)
    notes = _Notes()
    try:
        check(rows, errand.plan)
    except DippmError as error:
        notes.say(f"{os.uname().nodename}: {error.message}")
        notes.write({row.number: (Status("FAILED", "node"), "") for row in rows})
        return Report(notes.rows, (), tuple(notes.remarks))
    with Journal.of_this_process() as journal, Interrupts() as interrupts:
        CarriedOut(
            workload,
            rows,
            plan=errand.plan,
            group=errand.group,
            terms=errand.terms,
            book=notes,
            journal=journal,
            interrupts=interrupts,
            audience=notes,
        ).run()
    return Report(notes.rows, tuple(notes.lines), tuple(notes.remarks))


def on_devices(workload: Workload, gpus: list[str]) -> Workload:
    """Return a workload whose devices are those that a node gave it, in the order of the plan's.

    Its letters stay those of the plan: runs are called the same on every node.
    """
    named = dict.fromkeys(device for row in workload.rows for device in row.devices)
    given = dict(zip(named, gpus, strict=True)) if named else {}
    rows = tuple(
        row._replace(devices=tuple(given[device] for device in row.devices))
        for row in workload.rows
    )
    return workload._replace(rows=rows)


class Cluster:
    """Nodes that do errands.

    Args:
        address: "auto" for the cluster that is running here, "local" for a new one.

    Raises:
        PlanError: if Ray is not installed, or there is no such cluster.
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
        """Leave the cluster; a local one ends."""
        self._ray.shutdown()

    def check(self, errands: list[Errand]) -> None:
        """Refuse what would wait for ever.

        Raises:
            PlanError: if no node has as many GPUs as a workload needs.
        """
        most = max(
            (int(node["Resources"].get("GPU", 0)) for node in self._ray.nodes() if node["Alive"]),
            default=0,
        )
        for errand in errands:
            if errand.gpus > most:
                name = f"workload {errand.workload.experiment}/{errand.workload.name}"
                what = f"{name} needs {errand.gpus} GPUs on one node, and no node has more than"
                raise PlanError(f"{what} {most}", "Name fewer devices in its rows, or - for none.")

    def carry_out(
        self, errands: list[Errand], book: Book, interrupts: Interrupts, audience: Audience
    ) -> list[int]:
        """Have all errands done; return the numbers of the rows that were begun."""
        do = self._ray.remote(do_errand)
        waiting = {
            do.options(num_cpus=1, num_gpus=errand.gpus, max_retries=0).remote(errand): errand
            for errand in errands
        }
        began: list[int] = []
        asked, ask_at = 0, float("inf")
        while waiting:
            ready, _ = self._ray.wait(list(waiting), timeout=POLL_S)
            for key in ready:
                began += self._take(key, waiting.pop(key), book, audience, asked > 0)
            if min(interrupts.count, 2) > asked or time.monotonic() > ask_at:
                asked += 1
                ask_at = float("inf") if asked > 1 else time.monotonic() + 60
                for key in waiting:
                    self._ray.cancel(key, force=asked > 1)
        return began

    def _take(
        self, key: Any, errand: Errand, book: Book, audience: Audience, asked: bool
    ) -> list[int]:
        try:
            report = self._ray.get(key)
        except self._ray.exceptions.TaskCancelledError:
            return []  # it was never begun
        except self._ray.exceptions.RayError as error:
            status = Status("INTERRUPTED" if asked else "LOST")
            lost = str(error).strip().splitlines()[-1][:200]
            audience.say(f"workload {errand.workload.name}: {status}: {lost}")
            book.write(dict.fromkeys(errand.numbers, (status, "")))
            return list(errand.numbers)
        for line in report.lines:
            audience.line(*line)
        for remark in report.remarks:
            audience.say(remark)
        book.write({number: noted[:2] for number, noted in report.rows.items()})
        for number, (status, _, seconds) in report.rows.items():
            audience.became(book.row(number), status, seconds)
        return list(report.rows)
