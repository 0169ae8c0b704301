"""`dippm mig`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dippm.cli import options
from dippm.cli.choose import MaxMemory, SloAt, SloMs, answer_choice
from dippm.cli.output import print_remarks

if TYPE_CHECKING:
    from dippm.decide.choice import Choice


def mig(
    model: options.Source,
    slo_ms: SloMs = None,
    slo_at: SloAt = "upper",
    batch: options.Batch = 1,
    input: options.Input = None,
    device: options.DeviceName = "A100",
    max_memory_mb: MaxMemory = None,
    precision: options.Precision = "fp32",
    mode: options.Mode = "eager",
    timer: options.Timer = "wall",
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
    """Find the smallest MIG slice that holds a model at 99 % and meets a limit on its latency.

    Every slice is a row; exit code 1 if not even the whole GPU will do.
    """
    arguments = options.passed_on(locals())

    def ask() -> Choice:
        from dippm.decide.choice import smallest_slice

        return smallest_slice(
            model,
            framework,
            slo_ms=slo_ms,
            slo_at=slo_at,
            max_memory_mb=max_memory_mb,
            **arguments,
        )

    def show(choice: Choice) -> None:
        from dippm.show.report.choice import advice, remarks, slice_table
        from dippm.show.report.console import console

        console().print(slice_table(choice))
        print_remarks((*advice(choice), *remarks(choice, len(choice.contenders))))

    answer_choice("mig", ask, show, html=html, json=json, quiet=quiet)
