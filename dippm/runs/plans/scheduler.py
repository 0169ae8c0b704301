"""The scheduler: executes the workloads of a plan one after the other."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from dippm.errors import PlanError
from dippm.runs.plans.assumed import AssumedBoards
from dippm.runs.plans.executor import Interrupts, WorkloadExecutor
from dippm.runs.plans.journal import Journal, is_left, lock_plan, state_folder
from dippm.runs.plans.options import PlanObserver, PlanOptions, PlanOutcome
from dippm.runs.plans.plan import Plan
from dippm.runs.plans.recovery import recover_held
from dippm.runs.plans.row import PlanRow
from dippm.runs.plans.row_selection import check, select_rows
from dippm.runs.plans.table import StatusWriter, read_plan
from dippm.runs.plans.workload import Workload
from dippm.runs.store.attach_lock import hold_live
from dippm.runs.tracking.run_config import RunConfig, checked

Chosen = list[tuple[Workload, tuple[PlanRow, ...]]]


def run_plan(path: Path, options: PlanOptions, observer: PlanObserver) -> PlanOutcome:
    """Execute the remaining rows of a plan.

    Call it in the main thread. Remains of a killed scheduler are undone first.

    Raises:
        PlanError: if the plan is invalid, a row cannot be run, or another scheduler runs it;
            nothing was started then. Also the errors of `check`.
    """
    plan = read_plan(path)
    with lock_plan(plan.path), _attached_later():
        if is_left(state_folder(plan.path)):
            for sentence in recover_held(plan.path):
                observer.say(sentence)
        plan = read_plan(plan.path)
        chosen = choose(plan, options, observer)
        return _execute(plan, chosen, options, observer)


@contextmanager
def _attached_later() -> Iterator[None]:
    """Mark runs as in progress to the last row: nothing is attached between two rows."""
    live = hold_live()
    try:
        yield
    finally:
        if live is not None:
            os.close(live)


def choose(
    plan: Plan, options: PlanOptions, observer: PlanObserver, assumed: AssumedBoards | None = None
) -> Chosen:
    """Return the workloads with something to do, each with the rows to run.

    Args:
        plan: the plan.
        options: which rows are repeated, and where they run.
        observer: is notified of rows that are skipped.
        assumed: GPUs of another machine, to check a plan that is meant for it.

    Raises:
        PlanError: as `run_plan`; `RunError` for an invalid rate.
    """
    checked(RunConfig((), hz=options.hz))
    chosen: Chosen = []
    for workload in plan.workloads:
        rows, remarks = select_rows(workload, rerun_failed=options.rerun_failed)
        for remark in remarks:
            observer.say(remark)
        if rows:
            chosen.append((workload, rows))
    wanted = [row for _, rows in chosen for row in rows]
    if options.ray:  # devices and listeners are checked on the nodes
        wanted = [row._replace(devices=(), sharing="", listeners=()) for row in wanted]
    check(wanted, plan.path, assumed)
    return chosen


def _execute(
    plan: Plan, chosen: Chosen, options: PlanOptions, observer: PlanObserver
) -> PlanOutcome:
    began = time.monotonic()
    writer = StatusWriter(plan, observer.say)
    ran: list[int] = []
    try:
        journal = Journal(state_folder(plan.path))
    except OSError as error:
        hint = "It must be written before anything is begun: see $XDG_STATE_HOME."
        raise PlanError(f"the journal of the plan cannot be written: {error}", hint) from error
    with journal, Interrupts() as interrupts:
        if options.ray:
            ran = _on_nodes(plan, chosen, options, writer, interrupts, observer)
        for workload, rows in [] if options.ray else chosen:
            if interrupts.count:
                break
            ran += WorkloadExecutor(
                workload,
                rows,
                plan=plan.path,
                group=_group(plan, workload),
                options=options,
                writer=writer,
                journal=journal,
                interrupts=interrupts,
                observer=observer,
            ).run()
    wanted = {row.number for _, rows in chosen for row in rows}
    numbers = [row.number for row in plan.rows]
    return PlanOutcome(
        rows=tuple(writer.row(number) for number in numbers),
        ran=tuple(ran),
        skipped=tuple(number for number in numbers if number not in wanted),
        signal=interrupts.last,
        seconds=time.monotonic() - began,
    )


def _on_nodes(
    plan: Plan,
    chosen: Chosen,
    options: PlanOptions,
    writer: StatusWriter,
    interrupts: Interrupts,
    observer: PlanObserver,
) -> list[int]:
    from dippm.runs.plans.cluster import Cluster, RemoteJob

    jobs = [
        RemoteJob(
            workload,
            tuple(row.number for row in rows),
            plan.path,
            _group(plan, workload),
            os.getcwd(),
            options,
        )
        for workload, rows in chosen
    ]
    if not jobs:
        return []
    with redirect_stdout(sys.stderr):  # Ray prints to stdout
        cluster = Cluster(options.ray)
        try:
            cluster.check(jobs)
            return cluster.carry_out(jobs, writer, interrupts, observer)
        finally:
            cluster.leave()


def _group(plan: Plan, workload: Workload) -> str:
    return f"{plan.path.stem}/{workload.experiment}/{workload.name}"
