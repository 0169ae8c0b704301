"""A session: outcomes of a plan become rows, for all ways of measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from dataset.collect.campaign import Campaign
from dataset.collect.errors import CollectError, Stop
from dataset.collect.first_row import first_row
from dataset.collect.options import Options
from dataset.collect.pace import Pace
from dataset.collect.plans import TRIES, Pending, pending_of
from dataset.collect.progress import Progress, progress, tell
from dataset.collect.rows import PointOutcome, machine_columns, make_row
from dataset.plan.configuration import Job
from dippm.measure.collected import StorageError
from dippm.measure.collected.journal import mark_killed
from dippm.measure.collected.labels import why_not_used
from dippm.measure.collected.store import Store

Keep = Callable[[Job, PointOutcome], None]
Measure = Callable[[Sequence[Pending], Keep], None]


def run(
    jobs: Sequence[Job], options: Options, campaign: Campaign, *, measure: Measure, pace: Pace
) -> None:
    """Measure the pending jobs, keep the outcomes, and record the end in the campaign.

    Args:
        jobs: jobs of the plan.
        options: options of the campaign.
        campaign: the campaign, which is updated and written.
        measure: function that calls its second argument with each outcome.
        pace: time limits and interrupts of the campaign.
    """
    store = Store(
        options.folder, say=tell, wait_s=options.disk_wait_s, stopping=lambda: pace.interrupted
    )
    pending = list(pending_of(jobs, store, retry_failed=options.retry_failed))
    total = sum(len(item.points) for item in pending)
    planned = sum(len(job.points) for job in jobs)
    campaign.left, campaign.done_before = total, planned - total
    with suppress(OSError):  # a full disk is reported when rows are written
        mark_killed(options.folder, store.campaigns)
    write_campaign(campaign, options.folder)
    shown = progress(total)
    shown.say(f"{total} of {planned} points of the plan are to be measured")
    if again := sum(n < TRIES for n in store.disturbed.values()):
        shown.say(f"{again} points of this set were disturbed, and are measured again")
    began = time.monotonic()

    def keep(job: Job, outcome: PointOutcome) -> None:
        row = make_row(campaign.campaign, kind_of(job, options.families), job.workload, outcome)
        store.append(row)
        if not campaign.machine and row["device"]:
            note_machine(campaign, row, options.folder)
        if row["status"] == "ok":
            if not campaign.statuses["ok"]:
                for line in first_row(row):
                    shown.say(line)
            campaign.disturbed += why_not_used(row) is not None
        campaign.statuses[row["status"]] += 1
        campaign.left -= 1
        campaign.seconds = time.monotonic() - began
        shown.row(row)

    try:
        _until_end(campaign, lambda: measure(pending, keep), shown)
    finally:
        campaign.seconds = time.monotonic() - began
        store.close()
        shown.close()
        write_campaign(campaign, options.folder)


def make_folder(folder: Path) -> None:
    """Create the output folder.

    Raises:
        CollectError: if it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CollectError(f"{folder} cannot be made: {error.strerror}") from error


def write_campaign(campaign: Campaign, folder: Path) -> None:
    """Write the campaign's file; print a failure and continue, because the rows matter more."""
    try:
        campaign.write(folder)
    except OSError as error:
        tell(f"the campaign file could not be written: {error}")


def note_machine(campaign: Campaign, row: Mapping[str, Any], folder: Path) -> None:
    """Record the machine of the first row."""
    campaign.machine = machine_columns(row)
    campaign.commit = row["commit"]
    write_campaign(campaign, folder)


def kind_of(job: Job, families: Sequence[str]) -> str:
    """Return "operator" or "model"."""
    for name in (*families, "dataset.families.registry"):
        registry = import_module(name)
        for table in ("FAMILIES", "OPERATORS", "ZOO"):
            family = getattr(registry, table, {}).get(job.workload.family)
            if family is not None:
                return str(family.kind)
    return "model"


def _until_end(campaign: Campaign, work: Callable[[], None], shown: Progress) -> None:
    try:
        work()
    except Stop as stop:
        campaign.end(stop.why)
    except (CollectError, StorageError) as error:
        ended = error.ended if isinstance(error, CollectError) else "storage failed"
        campaign.end(ended, str(error))
        shown.say(str(error))
    except Exception as error:  # an error of our own: recorded and printed
        campaign.end("error", f"{type(error).__name__}: {error}")
        raise
    else:
        campaign.end("finished")
