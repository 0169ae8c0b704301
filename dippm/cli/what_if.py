"""`dippm what-if`."""

from __future__ import annotations

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, print_verify, print_warnings
from dippm.cli.progress import progress_shown


def what_if(
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
    html: options.Html = None,
    timeout_s: options.Timeout = 120.0,
    memory_limit_mb: options.MemoryLimit = 4096,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say what one change at a time would make of a model: bandwidth, layout, batch, ..."""
    arguments = options.passed_on(locals())
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.explanation import what_if as answer

        found = answer(model, framework, **arguments)
        if html:
            from dippm.show.report.explanation_page import write_what_if

            write_what_if(html, found)
    if json:
        print_json("what-if", found.to_dict())
        return
    from dippm.show.report.console import console
    from dippm.show.report.explanation import what_if_table

    console().print(what_if_table(found))
    print_warnings(found.baseline.warnings)
    print_verify(found.baseline)
