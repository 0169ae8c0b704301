"""`dippm doctor` and `dippm selftest`: the state of this installation, and what DIPPM costs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, progress_shown


def doctor(json: options.Json = False) -> None:
    """Check this installation: frameworks, checkpoints, GPU, memory and cache.

    Exit code 1 if a part is broken.
    """
    from dippm.show.report.console import console, findings_table
    from dippm.show.report.health import examine

    findings = examine()
    if json:
        print_json("doctor", {"findings": [asdict(finding) for finding in findings]})
    else:
        console().print(findings_table(findings))
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


selftest = typer.Typer(help="Measure the overhead of DIPPM.", no_args_is_help=True)


@selftest.command()
def overhead(
    sleep_s: Annotated[
        float, typer.Option(help="Duration of the sleep workload in s; 0: skip it.")
    ] = 5.0,
    sort_mb: Annotated[
        float, typer.Option(help="Size of the sorted array in MiB; 0: skip the workload.")
    ] = 128.0,
    matmul: Annotated[
        int, typer.Option(help="Rows of the multiplied square matrices; 0: skip the workload.")
    ] = 2000,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Use the full workloads: sleep 10 s, sort 1 GiB, multiply 10,000 rows."
        ),
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Number of repetitions.")] = 5,
    minutes: Annotated[
        float,
        typer.Option(
            min=0, help="Time limit in minutes: no repetition begins that would exceed it."
        ),
    ] = 10.0,
    sources: Annotated[str, typer.Option(help="Sources to sample, separated by commas.")] = "tree",
    device: Annotated[str, typer.Option(help="GPU to sample: index or UUID.")] = "0",
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run workloads with and without the sampler. Exit code 1 if the overhead exceeds its limit."""
    from dippm.base.progress import tell
    from dippm.measure.selftest import FULL, Plan
    from dippm.measure.selftest import overhead as run
    from dippm.show.report.console import console, others_table, overhead_table

    if full:
        sleep_s, sort_mb, matmul = FULL.sleep_s, FULL.sort_mb, FULL.matmul
    names = tuple(sources.split(","))
    plan = Plan(
        sleep_s, sort_mb, matmul, repeats, sources=names, device=device, limit_s=60 * minutes
    )
    # It takes minutes: a log gets a line per step, where a terminal has one that disappears.
    progress = tell if quiet or sys.stderr.isatty() else _say_stage
    with errors_reported(as_json=json), progress_shown(quiet=quiet, still=True):
        report = run(plan, progress=progress)
    if json:
        print_json("selftest-overhead", report.to_dict())
    else:
        console().print(overhead_table(report), others_table(report))
    if not report.ok:
        raise typer.Exit(1)


@selftest.command()
def tracking(
    seconds: Annotated[
        float, typer.Option(min=0, help="Duration of the command, a sleep, in s.")
    ] = 15.0,
    repeats: Annotated[int, typer.Option(min=1, help="Number of repetitions.")] = 3,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a command with and without tracking. Exit code 1 if the overhead exceeds its limit."""
    from dippm.base.progress import tell
    from dippm.runs.tracking.run_cost import run_cost
    from dippm.show.report.console import console, run_cost_table

    progress = tell if quiet or sys.stderr.isatty() else _say_stage
    with errors_reported(as_json=json), progress_shown(quiet=quiet, still=True):
        cost = run_cost(seconds, repeats, progress=progress)
    if json:
        print_json("selftest-run", cost.to_dict())
    else:
        console().print(run_cost_table(cost))
    if not cost.ok:
        raise typer.Exit(1)


def _say_stage(stage: str) -> None:
    typer.echo(stage, err=True)
