"""The supervisor: measures a plan point by point in a worker process."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dataset.collect.campaign import Campaign
from dataset.collect.locks import lock_device, lock_folder
from dataset.collect.options import Options, feasible_settings, new_runner
from dataset.collect.pace import Pace
from dataset.collect.plans import Pending
from dataset.collect.progress import tell
from dataset.collect.session import Keep, make_folder, run
from dataset.plan.configuration import Job


def collect(jobs: Sequence[Job], options: Options, plan: Mapping[str, Any]) -> Campaign:
    """Measure all pending points, until the plan or the budget ends, or an interrupt.

    Args:
        jobs: jobs of the plan.
        options: options of the campaign.
        plan: entries about the plan for the campaign file.

    Returns:
        The ended campaign, whose file is written.

    Raises:
        LockedError: if another collector uses the folder or the device.
        CollectError: if the folder is not usable.
    """
    pace = Pace(timeout_s=options.timeout_s, budget_s=options.budget_s, limit=options.limit)
    make_folder(options.folder)
    with lock_folder(options.folder), lock_device(options.device) as device_lock:
        options = replace(options, settings=feasible_settings(options.settings, options.device))
        campaign = Campaign(
            plan, options.device, options.settings, options.timeout_s, options.budget_s
        )

        runner = new_runner(options, pace, device_lock)

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


@contextmanager
def interruptible(pace: Pace) -> Iterator[None]:
    """Make SIGINT and SIGTERM end the campaign in an orderly way."""

    def interrupt(number: int, _: Any) -> None:
        what = "dropping" if pace.interrupted else "finishing"
        more = "" if pace.interrupted else "; once more drops it"
        pace.interrupt(number)
        tell(f"{signal.Signals(number).name}: {what} the point in flight{more}")

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
