"""`Runner`: measures the points of a job, each of which gets an outcome in any case."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dataset.collect.errors import DeviceLostError
from dataset.collect.pace import Pace
from dataset.collect.process.worker_process import WorkerFailedError, WorkerProcess
from dataset.collect.rows import PointOutcome, machine_columns
from dataset.plan.configuration import Job, Point
from dippm.base.process import TimedOutError
from dippm.measure.columns import Status

STARTS = 3
"""Consecutive workers that fail to start before the device counts as lost."""
CRASHES = 20
"""Consecutive workers that die on a point before the device counts as lost."""
JOBS_PER_WORKER = 100
START_S = 300.0
"""Time limit for the start of a worker, which may import from a slow network disk."""
COMPILE_GUESS_S = 20.0
COMPILE_PATIENCE = 2.0
"""Factor on the time limit for a compiled point."""
GUESS_S = 1.0
RegimeKey = tuple[str, str, str, bool]


class Runner:
    """Measures points in a worker, which it replaces when it hangs, dies or gets old.

    Args:
        start: function that starts a worker.
        pace: time limits of points and of the campaign.
        energy_window_s: minimum duration of a point with energy.
        jobs_per_worker: number of jobs after which a worker is replaced, to bound leaks.
    """

    def __init__(
        self,
        start: Callable[[], WorkerProcess],
        *,
        pace: Pace,
        energy_window_s: float = 0.0,
        jobs_per_worker: int = JOBS_PER_WORKER,
    ) -> None:
        self._start, self._pace, self._energy_window_s = start, pace, energy_window_s
        self._jobs_per_worker = jobs_per_worker
        self._worker: WorkerProcess | None = None
        self._jobs = self._crashes = 0
        self._built: str | None = None
        self._machine: Mapping[str, Any] = {}

    def outcomes(
        self, job: Job, points: Sequence[Point], known: Mapping[Point, Status]
    ) -> Iterator[PointOutcome]:
        """Yield an outcome for each point, in order.

        Skipped are batches larger than one that ran out of memory or time in the same regime, and
        all points of a model that cannot be built.

        Args:
            job: the job with the model.
            points: its points without an outcome.
            known: statuses of its other points.

        Raises:
            Stop: if the next point must not start; one in flight is then dropped.
            DeviceLostError: if workers no longer start or all die.
        """
        too_large = _TooLarge(known)
        unbuildable = ""
        self._renew(job)
        for point in points:
            reason = unbuildable or too_large.reason(point)
            if reason:
                self._pace.check()
                outcome = PointOutcome(point, "skipped", reason, machine_columns(self._machine))
            else:
                outcome = self._measure(job, point)
            too_large.note(outcome)
            if outcome.while_building:
                unbuildable = f"the model was not built: {outcome.reason}"
            self._pace.count()
            yield outcome

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def kill(self) -> None:
        """End the worker at once."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = self._built = None

    def _measure(self, job: Job, point: Point) -> PointOutcome:
        self._pace.check()
        worker = self._ready()
        compiled = point.mode == "compiled"
        kind = (compiled, point.phase, point.energy, self._built == job.workload.model)
        guess_s = COMPILE_GUESS_S if compiled else GUESS_S
        guess_s += self._energy_window_s * point.energy
        self._pace.begin(kind, guess_s, COMPILE_PATIENCE if compiled else 1.0)
        began = time.monotonic()
        outcome = self._ask(worker, job, point)
        self._pace.finish(kind, time.monotonic() - began)
        self._crashes = self._crashes + 1 if outcome.status == "crash" else 0
        if self._crashes >= CRASHES:
            raise DeviceLostError(
                f"{CRASHES} workers died one after the other; the last: {outcome.reason}",
                "Look at worker.log and the kernel's log; the same command goes on later.",
            )
        return outcome

    def _ask(self, worker: WorkerProcess, job: Job, point: Point) -> PointOutcome:
        building = self._built != job.workload.model
        try:
            if building:
                model = job.workload.model
                reply = worker.ask({"do": "build", "model": model}, self._pace.remaining)
                if reply["event"] == "failed":
                    return self._failure_outcome(point, reply, while_building=True)
                self._built, building = job.workload.model, False
            reply = worker.ask({"do": "measure", "point": asdict(point)}, self._pace.remaining)
        except TimedOutError:
            self.kill()
            self._pace.check()  # raises if the campaign's time ran out: the point is dropped
            reason = f"no answer within {self._pace.limit_s:g} s"
            return PointOutcome(point, "timeout", reason, machine_columns(self._machine), building)
        except WorkerFailedError as error:
            self.kill()
            return PointOutcome(
                point, "crash", f"worker {error}", machine_columns(self._machine), building
            )
        if reply["event"] == "failed":
            return self._failure_outcome(point, reply, while_building=False)
        return PointOutcome(point, "ok", columns=reply["columns"])

    def _failure_outcome(
        self, point: Point, reply: Mapping[str, Any], *, while_building: bool
    ) -> PointOutcome:
        if while_building:
            self._built = None
        if reply["fatal"]:
            self.kill()
        return PointOutcome(
            point, reply["status"], reply["reason"], machine_columns(self._machine), while_building
        )

    def _renew(self, job: Job) -> None:
        if self._worker is not None and self._jobs >= self._jobs_per_worker:
            self.close()
        self._jobs += 1

    def _ready(self) -> WorkerProcess:
        if self._worker is not None:
            return self._worker
        reasons = []
        for attempt in range(STARTS):
            if attempt:
                time.sleep(min(float(attempt), self._pace.campaign_remaining()))
            worker = self._start()
            try:
                worker.wait_ready(self._pace.starting(START_S))
            except (TimedOutError, WorkerFailedError) as error:
                worker.kill()
                self._pace.check()
                reasons.append(str(error) or f"not ready within {START_S:.0f} s")
            else:
                self._worker, self._built, self._jobs = worker, None, 1
                self._machine = worker.machine
                return worker
        raise DeviceLostError(
            f"{STARTS} workers in a row could not start; the last: {reasons[-1]}",
            "Everything measured is kept. Look at the device (nvidia-smi, `dmesg`) and worker.log; "
            "the same command goes on where it stopped.",
        )


class _TooLarge:
    """Records the batch from which a regime fails."""

    def __init__(self, known: Mapping[Point, Status]) -> None:
        self._smallest: dict[RegimeKey, tuple[int, str]] = {}
        for point, status in known.items():
            self.note(PointOutcome(point, status))

    def note(self, outcome: PointOutcome) -> None:
        if outcome.status not in ("oom", "timeout") or outcome.while_building:
            return
        key, batch = _regime(outcome.point), outcome.point.batch
        if key not in self._smallest or batch < self._smallest[key][0]:
            self._smallest[key] = batch, outcome.status

    def reason(self, point: Point) -> str:
        batch, status = self._smallest.get(_regime(point), (0, ""))
        if not status or point.batch <= batch:
            return ""
        what = "ran out of memory" if status == "oom" else "timed out"
        return f"batch {batch} of the same regime {what}"


def _regime(point: Point) -> RegimeKey:
    return point.precision, point.mode, point.phase, point.channels_last
