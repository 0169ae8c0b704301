"""The command line: one file per subject; all commands are gathered here.

Exit codes: 0 ok, 1 error, 2 usage, 128 + n ended by signal n (130 interrupted). Data goes to
stdout, messages go to stderr.
"""

from __future__ import annotations

import os

import typer

from dippm.cli.calibrate import calibrate
from dippm.cli.check import check
from dippm.cli.choose import choose, mig, mig_plan, request
from dippm.cli.commands import Commands, end_in_order
from dippm.cli.compare import compare, explore, sweep
from dippm.cli.explain import diff, explain, graph, what_if
from dippm.cli.lists import devices, devices_import, hosts, models
from dippm.cli.measure import measure
from dippm.cli.output import say
from dippm.cli.pipeline import llm, pipeline
from dippm.cli.plan import plan
from dippm.cli.plot import plot
from dippm.cli.predict import cost, predict
from dippm.cli.report import report
from dippm.cli.run import run, track
from dippm.cli.runs import compare_run, export_trace, import_runs, runs, verify_trace
from dippm.cli.selftest import doctor, selftest
from dippm.cli.serve import serve, ui
from dippm.cli.share import parallel, share

app = typer.Typer(
    name="dippm",
    cls=Commands,
    help="Predict what a deep learning model costs on a GPU, from the model file.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    predict,
    compare,
    choose,
    cost,
    mig,
    share,
    request,
    sweep,
    explain,
    diff,
    what_if,
    parallel,
    pipeline,
    llm,
    explore,
    check,
    calibrate,
    graph,
    measure,
    report,
    runs,
    plot,
    ui,
    serve,
    devices,
    hosts,
    models,
    doctor,
):
    app.command()(command)
app.command("import")(import_runs)
app.command("mig plan")(mig_plan)
app.command("devices import")(devices_import)
app.command("compare-run")(compare_run)
app.command("export-trace")(export_trace)
app.command("verify-trace")(verify_trace)
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command(context_settings={"allow_interspersed_args": False})(track)
app.add_typer(plan, name="plan")
app.add_typer(selftest, name="selftest")


def _show_version(wanted: bool) -> None:
    if wanted:
        from dippm import __version__

        say(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_show_version
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    # A prediction multiplies small matrices: more threads would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    end_in_order()
    app()
