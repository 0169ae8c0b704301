"""Execute one workload: allocate devices, prepare all rows, start them together, record results."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from dippm.errors import DippmError
from dippm.runs.colocation import Seat, seated
from dippm.runs.plans.journal import Journal
from dippm.runs.plans.options import PlanObserver, PlanOptions, StatusSink
from dippm.runs.plans.row import PlanRow, Status
from dippm.runs.plans.row_process import StartBarrier
from dippm.runs.plans.row_selection import metrics_of
from dippm.runs.plans.run_configs import run_config_of
from dippm.runs.plans.running import RunningRow, environment_of
from dippm.runs.plans.workload import Workload

PATIENCE_S = 20.0
"""Seconds for a row to end after SIGINT, SIGTERM and SIGKILL, before it is asked again."""
LOOK_S = 1.0
NOT_SEATED = Status("FAILED", "devices")


class WorkloadExecutor:
    """Executes a workload.

    Args:
        workload: workload with all its rows.
        rows: rows of the workload to run.
        plan: path of the plan, None for a row of a command line.
        group: name that groups the runs.
        options: options of the plan.
        writer: records the status of rows.
        journal: records what a crash would have to undo.
        interrupts: signals that ask the plan to end.
        observer: is notified of progress.
    """

    def __init__(
        self,
        workload: Workload,
        rows: Sequence[PlanRow],
        *,
        plan: Path | None,
        group: str,
        options: PlanOptions,
        writer: StatusSink,
        journal: Journal,
        interrupts: Interrupts,
        observer: PlanObserver,
    ) -> None:
        self._workload, self._rows, self._plan, self._group = workload, rows, plan, group
        self._options, self._writer, self._journal = options, writer, journal
        self._interrupts, self._observer = interrupts, observer
        self._running: list[RunningRow] = []
        self._selector = selectors.DefaultSelector()
        self._asked, self._ask_again = 0, float("inf")
        self._passed = False
        self._began = 0.0
        self._predictions: dict[int, Mapping[str, Any]] = {}

    def run(self) -> tuple[int, ...]:
        """Execute the workload; return the numbers of the rows that were started."""
        self._predict_rows()
        with ExitStack() as undone, self._selector:
            try:
                seats = self._allocate_seats(undone)
            except DippmError as error:
                self._record_refusal(error)
                return ()
            if not self._interrupts.count:
                self._execute(seats)
        return tuple(one.row.number for one in self._running) if self._passed else ()

    def _predict_rows(self) -> None:
        """Predict the rows that name their model, before anything runs beside it."""
        for row in self._rows:
            if not row.model or self._interrupts.count:
                continue
            from dippm.runs.plans.predicted import predict_row

            try:
                folder = self._plan.parent if self._plan else None
                self._predictions[row.number] = predict_row(row, folder)
            except DippmError as error:
                self._observer.say(f"row {row.number} is not predicted: {error.message}")

    def _allocate_seats(self, undone: ExitStack) -> dict[int, Seat]:
        """Return the seat of each row by number; rows of the same devices share them."""
        by_devices: dict[tuple[str, ...], list[PlanRow]] = {}
        for row in self._rows:
            by_devices.setdefault(row.devices, []).append(row)
        found = {}
        for devices, rows in by_devices.items():
            sharing = [row.sharing for row in rows]
            seats = undone.enter_context(
                seated(
                    devices or ("",),
                    sharing[0] if len(set(sharing)) == 1 else sharing,
                    len(rows),
                    journal=self._journal.seats(),
                )
            )
            found.update({row.number: seat for row, seat in zip(rows, seats, strict=True)})
        return found

    def _record_refusal(self, error: DippmError) -> None:
        for row in self._rows:
            self._observer.say(f"row {row.number}: {error.message}")
        self._writer.write({row.number: (NOT_SEATED, "") for row in self._rows})
        for row in self._rows:
            self._observer.became(row, NOT_SEATED, 0.0)

    def _execute(self, seats: dict[int, Seat]) -> None:
        barrier = StartBarrier()
        self._selector.register(self._interrupts.handle, selectors.EVENT_READ, self._interrupted)
        try:
            for row in self._rows:
                self._start(row, seats[row.number], barrier)
            self._wait_until(lambda: all(one.ready or one.over for one in self._running))
            self._passed = not self._asked and all(not one.over for one in self._running)
            if self._passed:
                self._start_all(barrier)
                self._wait_until(lambda: all(one.over for one in self._running))
        except BaseException:
            for one in (*self._running, *self._running):  # the second request ends it at once
                one.request_end()
            raise
        finally:
            barrier.close()
            self._wait_until(lambda: all(one.over for one in self._running))
            self._selector.unregister(self._interrupts.handle)

    def _start(self, row: PlanRow, seat: Seat, barrier: StartBarrier) -> None:
        config = run_config_of(
            self._workload,
            row,
            seat,
            plan=self._plan,
            metrics=metrics_of(row),
            hz=self._options.hz,
            store=self._options.store,
            timeout_s=self._options.timeout_s,
        )._replace(prediction=self._predictions.get(row.number))
        letter = self._workload.letters[self._workload.rows.index(row)]
        environment = environment_of(seat.environment, self._group, os.environ)
        self._journal.write(row=row.number)
        one = RunningRow(row, letter, config, environment, barrier, self._observer.line)
        self._journal.write(row=row.number, process=str(one.process))
        self._running.append(one)
        self._selector.register(one.report, selectors.EVENT_READ, lambda: self._read_report(one))
        self._selector.register(one.output, selectors.EVENT_READ, lambda: self._print(one))

    def _start_all(self, barrier: StartBarrier) -> None:
        """Record what is about to happen, then start all rows at once."""
        for one in self._running:
            self._journal.write(row=one.row.number, run=one.run, folder=one.folder)
        self._writer.write(
            {
                one.row.number: (Status("RUNNING", str(one.process)), one.run)
                for one in self._running
            }
        )
        self._began = time.monotonic()
        barrier.open(len(self._running))

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            wait_s = max(0.0, min(LOOK_S, self._ask_again - time.monotonic()))
            for key, _ in self._selector.select(wait_s):
                key.data()
            if self._interrupts.count > self._asked:  # counted without waking the selector
                self._request_end()
            if time.monotonic() >= self._ask_again:
                self._request_end()

    def _read_report(self, one: RunningRow) -> None:
        if one.read_reports():
            return
        for handle in (one.report, one.output):
            if handle in self._selector.get_map():
                self._selector.unregister(handle)
        status = one.end()
        if self._passed:
            self._writer.write({one.row.number: (status, one.run)})
            self._observer.became(one.row, status, time.monotonic() - self._began)
        elif not self._asked and not one.ready:  # the others are released and run next time
            self._observer.say(f"row {one.row.number} could not be prepared: {status}")
            self._writer.write({one.row.number: (Status("LOST"), "")})
        self._journal.write(row=one.row.number, ended=str(status))

    def _print(self, one: RunningRow) -> None:
        if not one.over and not one.print():
            self._selector.unregister(one.output)

    def _interrupted(self) -> None:
        self._interrupts.seen()
        if self._interrupts.count > self._asked:
            self._request_end()

    def _request_end(self) -> None:
        self._asked += 1
        if self._asked == 1:
            self._observer.say("interrupting what runs; once more ends it at once")
        self._ask_again = time.monotonic() + PATIENCE_S
        for one in self._running:
            one.request_end()


# Ctrl-C and other signals that ask a scheduler to end, as a count and a readable descriptor.


SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """Counts signals within its block; ignored signals stay ignored.

    Attributes:
        count: number of signals so far.
        last: number of the last signal, 0 for none.
        handle: descriptor that becomes readable at each signal.
    """

    def __init__(self) -> None:
        self.count, self.last = 0, 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        self.handle, self._theirs = os.pipe()
        os.set_blocking(self._theirs, False)
        os.set_blocking(self.handle, False)
        for name in SIGNALS:
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.handle)
        os.close(self._theirs)

    def seen(self) -> None:
        """Empty the descriptor, so that it is not readable any more."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.handle, 64):
                pass

    def _note(self, number: int, _: FrameType | None) -> None:
        self.count, self.last = self.count + 1, number
        with contextlib.suppress(BlockingIOError):  # already readable
            os.write(self._theirs, b"!")
