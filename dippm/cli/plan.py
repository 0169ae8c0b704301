"""`dippm plan`: runs in a table, carried out workload by workload."""

from __future__ import annotations

import json as json_module
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, say

if TYPE_CHECKING:
    from dippm.runs.plans.assumed import AssumedBoards
    from dippm.runs.plans.options import PlanOptions
    from dippm.runs.plans.row import PlanRow, Status

plan = typer.Typer(help="Execute the runs of a table or a sweep.", no_args_is_help=True)

PlanFile = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN", help="Table of runs in radT's format (.csv), or a sweep (.yml, .yaml)."
    ),
]


@plan.command()
def run(
    file: PlanFile,
    rerun_failed: Annotated[
        bool, typer.Option("--rerun-failed", "-r", help="Also run rows that failed or timed out.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=0, help="Time limit of a row in s; 0: no limit.")
    ] = 0.0,
    hz: options.Hz = 10.0,
    store: options.RunStore = "",
    ray: Annotated[
        str,
        typer.Option(
            "--ray",
            help="Ray cluster to run on, one task per workload: its address, auto or local.",
        ),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check the plan and show its commands without running them."
        ),
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run the rows of a plan that are not finished, and write their status into the plan.

    Ctrl-C ends running rows and starts no others; a second Ctrl-C ends them at once. Exit code 1 if
    a row is not finished at the end, 128 + n after signal n.
    """
    with errors_reported(as_json=json):
        from dippm.runs.plans.options import PlanOptions

        terms = PlanOptions(
            rerun_failed=rerun_failed, timeout_s=timeout_s, hz=hz, store=store, ray=ray
        )
        if dry_run:
            show_what_would_be_run(file, terms, None, as_json=json)
        else:
            carry_out(file, terms, as_json=json, quiet=quiet)


@plan.command()
def check(
    file: PlanFile,
    assume: Annotated[
        str,
        typer.Option(
            "--assume",
            help="GPUs of the machine that the plan is for, such as a100x4. Default: those of this "
            "machine.",
        ),
    ] = "",
    rerun_failed: Annotated[
        bool,
        typer.Option("--rerun-failed", "-r", help="Also include rows that failed or timed out."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Check a plan and show its commands without running them."""
    with errors_reported(as_json=json):
        from dippm.runs.plans.assumed import AssumedBoards
        from dippm.runs.plans.options import PlanOptions

        assumed = AssumedBoards.parse(assume) if assume else None
        show_what_would_be_run(file, PlanOptions(rerun_failed=rerun_failed), assumed, as_json=json)


@plan.command()
def show(file: PlanFile, json: options.Json = False) -> None:
    """Show the rows of a plan and their status."""
    with errors_reported(as_json=json):
        from dippm.runs.plans.table import read_plan
        from dippm.show.report.console import console
        from dippm.show.report.plans import plan_document, plan_table, status_counts

        found = read_plan(file)
        if json:
            print_json("plan", plan_document(found))
        else:
            console().print(plan_table(found.rows))
            say(f"{len(found.rows)} rows: {status_counts(found.rows)}")


@plan.command()
def recover(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PLAN]", help="Plan to clean up after. Default: all plans of this machine."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Clean up after a killed plan: processes, MPS, MIG slices, rows still marked as running."""
    with errors_reported(as_json=json):
        from dippm.runs.plans.recovery import recover, recover_all
        from dippm.show.report.console import print_text

        said = recover_all() if file is None else recover(file)
    if json:
        print_json("plan-recover", {"done": said})
        return
    for sentence in said or ["nothing was left"]:
        print_text(sentence, sys.stdout)


def carry_out(file: Path, terms: PlanOptions, *, as_json: bool, quiet: bool) -> None:
    """Run a plan, and exit with its code unless all went well."""
    from dippm.runs.plans.scheduler import run_plan
    from dippm.runs.plans.table import read_plan
    from dippm.show.report.plans import outcome_document, outcome_line

    if not quiet and not terms.ray:
        say_predicted(file, rerun_failed=terms.rerun_failed)
    outcome = run_plan(file, terms, _PlanProgress(as_json=as_json, quiet=quiet))
    if as_json:
        print_json("plan-outcome", outcome_document(read_plan(file), outcome))
    elif not quiet:
        say(outcome_line(outcome))
    if outcome.signal:
        raise typer.Exit(128 + outcome.signal)
    if not outcome.well:
        raise typer.Exit(1)


def say_predicted(file: Path, *, rerun_failed: bool) -> None:
    """Say on stderr what rows that share a GPU will do to each other, if they name their models.

    `dippm plan check` predicts it in a process of its own, which is gone before anything runs. What
    is wrong with the plan is for `run_plan` to say.
    """
    from dippm.runs.plans.table import read_plan
    from dippm.show.report.console import print_text
    from dippm.show.report.plans import predicted_lines

    models = {row.number for row in read_plan(file).rows if row.model}
    if not models:
        return
    words = ["plan", "check", str(file), "--json", *["--rerun-failed"] * rerun_failed]
    told = subprocess.run(
        [sys.executable, "-m", "dippm", *words], capture_output=True, stdin=subprocess.DEVNULL
    )
    try:
        documents = json_module.loads(told.stdout)["predicted"]
    except (ValueError, KeyError):
        return
    for line in predicted_lines(one for one in documents if models.intersection(one["rows"])):
        print_text(line, sys.stderr)


def show_what_would_be_run(
    file: Path, terms: PlanOptions, assumed: AssumedBoards | None, *, as_json: bool
) -> None:
    """Check a plan and show its commands, for the GPUs of this machine or assumed ones.

    Also what rows that share a GPU do to each other, as far as it is known.
    """
    from dippm.runs.plans.predicted import predict_shared_rows
    from dippm.runs.plans.scheduler import choose
    from dippm.runs.plans.table import read_plan
    from dippm.show.report.console import console
    from dippm.show.report.plans import (
        commands_table,
        plan_document,
        predicted_document,
        predicted_lines,
    )

    found = read_plan(file)
    chosen = choose(found, terms, _PlanProgress(as_json=as_json, quiet=False), assumed)
    numbers = [row.number for _, rows in chosen for row in rows]
    predicted = map(predicted_document, predict_shared_rows(chosen, found.path.parent, assumed))
    if as_json:
        print_json("plan", {**plan_document(found), "to_run": numbers, "predicted": [*predicted]})
    elif numbers:
        console().print(commands_table(found, chosen))
        for line in predicted_lines(predicted):
            say(line)
    else:
        say("nothing is left to do")


class _PlanProgress:
    """Shows the progress of a plan: output of runs on stdout, or on stderr with --json."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self._lines = sys.stderr if as_json else sys.stdout
        self._is_quiet = quiet

    def line(self, name: str, text: str) -> None:
        if not self._is_quiet:
            from dippm.base.printable import printable

            self._lines.write(f"[{printable(name)}] {text}\n")
            self._lines.flush()

    def say(self, text: str) -> None:
        from dippm.show.report.console import print_text

        print_text(f" ! {text}", sys.stderr)

    def became(self, row: PlanRow, status: Status, seconds: float) -> None:
        if self._is_quiet:
            return
        from dippm.base.number_format import show as figure
        from dippm.show.report.console import print_text

        name = f"{row.experiment}/{row.workload}"
        print_text(f"row {row.number} ({name}): {status} after {figure(seconds)} s", sys.stderr)
