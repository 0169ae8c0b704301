"""The command and the run configuration of a row."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dippm.errors import PlanError
from dippm.runs.colocation import Seat
from dippm.runs.plans.plan import is_plan
from dippm.runs.plans.row import PlanRow, as_options, settings_of, words_of
from dippm.runs.plans.workload import Workload, shares_a_device
from dippm.runs.tracking.listeners import split_profiler
from dippm.runs.tracking.run_config import RunConfig

ALWAYS = ("tree",)
"""Sources sampled for every row: the run's own processes."""


def resolve_command(
    file: str, arguments: Sequence[str], plan_folder: Path | None = None, *, whole: bool = False
) -> tuple[str, ...]:
    """Return the full command of a file or program with arguments.

    A Python file that is not executable is run by this Python. Relative paths start in the current
    folder, else in that of the plan.

    Args:
        file: a path, a program's name, or either with its first words.
        arguments: further arguments.
        plan_folder: folder of the plan.
        whole: whether `file` is a single word even with spaces.

    Raises:
        PlanError: if there is no such file or program, or if it is a plan.
    """
    words = [file] if whole or find_file(file, plan_folder) else shlex.split(file)
    if os.sep not in words[0] and not words[0].endswith(".py") and shutil.which(words[0]):
        return (*words, *arguments)  # as in a shell, programs take precedence over files
    if is_plan(words[0]):
        hint = "Give each plan to `dippm plan run` alone: a plan of plans could run itself."
        raise PlanError(f"{words[0]} is a plan, and a row runs a program", hint)
    found = find_file(words[0], plan_folder)
    if found is None:
        hint = "Paths start in the current folder, or beside the plan."
        raise PlanError(f"there is no {words[0]}", hint)
    path = str(found) if os.sep in str(found) else os.path.join(os.curdir, found)
    if path.endswith(".py") and not os.access(found, os.X_OK):
        return (sys.executable, str(found), *words[1:], *arguments)
    if not os.access(found, os.X_OK):
        hint = f"`chmod +x {found}`, or name what runs it: File = sh {found}."
        raise PlanError(f"{found} may not be executed", hint)
    return (path, *words[1:], *arguments)


def arguments_of(row: PlanRow) -> tuple[str, ...]:
    """Return the arguments of a row's command."""
    words = words_of(row.params)
    return as_options(words) if row.file.endswith(".py") else words


def run_config_of(
    workload: Workload,
    row: PlanRow,
    seat: Seat,
    *,
    plan: Path | None,
    metrics: tuple[str, ...],
    hz: float = 10.0,
    store: str = "",
    timeout_s: float = 0.0,
) -> RunConfig:
    """Return the configuration of a row's run.

    Args:
        workload: workload of the row.
        row: the row.
        seat: allocation of the row.
        plan: path of the plan, None for a row of a command line.
        metrics: sources, without those of `ALWAYS`.
        hz: samples per second.
        store: URI of the store, "" for the default one.
        timeout_s: time limit; 0 for none.

    Raises:
        PlanError: as `resolve_command`.
    """
    letter = workload.letters[workload.rows.index(row)]
    arguments = arguments_of(row)
    tags = {
        "workload": workload.name,
        "letter": letter,
        "devices": "+".join(row.devices),
        "collocation": row.sharing,
        "listeners": "+".join(row.listeners),
        "beside": ", ".join(runs_beside(workload, row)),
        **seat.facts,
    }
    if plan is not None:
        tags |= {"plan": str(plan), "row": str(row.number)}
    return RunConfig(
        command=resolve_command(row.file, arguments, plan.parent if plan else None),
        name=workload.run_name(row),
        experiment=workload.experiment,
        store=store,
        metrics=(*ALWAYS, *(name for name in metrics if name not in ALWAYS)),
        hz=hz,
        device=(seat.visible or row.devices or ("0",))[0],
        params=settings_of(arguments),
        tags={name: text for name, text in tags.items() if text},
        timeout_s=timeout_s,
        profile=split_profiler(row.listeners)[1],
    )


def runs_beside(workload: Workload, row: PlanRow) -> list[str]:
    """Return the letters of the runs that share a device with a row's run."""
    return [
        letter
        for other, letter in zip(workload.rows, workload.letters, strict=True)
        if other is not row and shares_a_device(other, row)
    ]


def find_file(name: str, plan_folder: Path | None) -> Path | None:
    """Return the path of a file, None if it does not exist."""
    path = Path(name)
    if path.is_file():
        return path
    if plan_folder is not None and not path.is_absolute() and (plan_folder / path).is_file():
        return plan_folder / path
    return None
