"""`dippm explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, print_verify, print_warnings
from dippm.cli.pages import ready_to_plot
from dippm.cli.progress import progress_shown


def explain(
    model: options.Source,
    batch: options.Batch = 1,
    input: options.Input = None,
    device: options.DeviceName = "A100",
    precision: options.Precision = "fp32",
    mode: options.Mode = "eager",
    timer: options.Timer = "wall",
    mig: options.Mig = None,
    channels_last: options.ChannelsLast = False,
    host: options.Host = None,
    attention: options.Attention = "fused",
    phase: options.Phase = "inference",
    optimizer: options.Optimizer = "sgd",
    checkpointing: options.Checkpointing = False,
    autograd: options.Autograd = False,
    context_mb: options.ContextMb = None,
    runtime: options.Runtime = "pytorch",
    framework: options.Framework = None,
    checkpoint: options.CheckpointName = None,
    trust: options.Trust = False,
    operators: Annotated[
        int, typer.Option("--operators", min=0, help="Also list the N costliest operators.")
    ] = 0,
    depth: options.Depth = 3,
    html: options.Html = None,
    timeout_s: options.Timeout = 120.0,
    memory_limit_mb: options.MemoryLimit = 4096,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say where time, energy and memory are; --html adds a flame chart and a roofline plot."""
    arguments = options.passed_on(locals())
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        from dippm.decide.explanation import explain as answer

        found = answer(model, framework, **arguments)
        if html:
            from dippm.show.report.explanation_page import write_explanation

            write_explanation(html, found)
    if json:
        print_json("explain", found.to_dict())
        return
    from dippm.show.report.console import console
    from dippm.show.report.explanation import explained_table, module_table

    console().print(module_table(found, depth))
    if operators:
        console().print(explained_table(found, operators))
    print_warnings(found.prediction.warnings)
    print_verify(found.prediction)
