"""`dippm diff`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.base.written import whole_number
from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, print_verify, print_warnings
from dippm.cli.pages import ready_to_plot
from dippm.cli.progress import progress_shown


def diff(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL [MODEL]", help="One model, or two.")
    ],
    batch: Annotated[str, typer.Option("--batch", "-b", help="Size, or two: 1,32.")] = "1",
    input: options.Input = None,
    device: options.Devices = "A100",
    precision: options.Precisions = "fp32",
    mode: Annotated[
        str, typer.Option("--mode", help="eager or compiled, or two: eager,compiled.")
    ] = "eager",
    timer: options.Timer = "wall",
    mig: Annotated[
        str | None, typer.Option("--mig", help="Slice, or two; full is the whole GPU: full,3g.20gb")
    ] = None,
    layout: Annotated[
        str, typer.Option("--layout", help="channels-first or channels-last, or two.")
    ] = "channels-first",
    host: Annotated[
        str | None, typer.Option("--host", help="Machine that launches the kernels, or two.")
    ] = None,
    attention: Annotated[
        str, typer.Option("--attention", help="fused or unfused, or two: fused,unfused.")
    ] = "fused",
    phase: Annotated[
        str, typer.Option("--phase", help="inference or train, or two: inference,train.")
    ] = "inference",
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="Of training steps: sgd, adam, adamw, or two.")
    ] = "sgd",
    checkpointing: options.Checkpointing = False,
    autograd: options.Autograd = False,
    context_mb: options.ContextMb = None,
    framework: options.Framework = None,
    checkpoint: options.CheckpointName = None,
    trust: options.Trust = False,
    depth: Annotated[
        int | None,
        typer.Option("--depth", min=1, help="Names of a module's path that are kept; all."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="Changes listed before the others are summed up.")
    ] = 15,
    html: options.Html = None,
    timeout_s: options.Timeout = 120.0,
    memory_limit_mb: options.MemoryLimit = 4096,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say where the time between two predictions went: two models, devices, precisions, ...

    A condition with two values, `--precision fp32,fp16`, gives each side its own.
    """
    given = options.passed_on(locals())
    if len(models) > 2:
        raise typer.BadParameter(f"{len(models)} models: give one or two")
    sides = [_layout(text) for text in options.listed(layout)]
    arguments: dict[str, Any] = given | {
        "batch": _one_or_two([_size(text) for text in options.listed(batch)]),
        "device": _one_or_two(options.listed(device)),
        "precision": _one_or_two(options.listed(precision)),
        "mode": _one_or_two(options.listed(mode)),
        "timer": _one_or_two(options.listed(timer)),
        "mig": _one_or_two([None if s == "full" else s for s in options.listed(mig or "full")]),
        "channels_last": _one_or_two(sides),
        "host": _one_or_two(options.listed(host)) if host else None,
        "attention": _one_or_two(options.listed(attention)),
        "phase": _one_or_two(options.listed(phase)),
        "optimizer": _one_or_two(options.listed(optimizer)),
    }
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        ready_to_plot(html)
        from dippm.decide.explanation import diff as answer

        after = models[1] if len(models) == 2 else None
        found = answer(models[0], after, framework, **arguments)
        if html:
            from dippm.show.report.explanation_page import write_difference

            write_difference(html, found, depth)
    if json:
        print_json("diff", found.to_dict(depth))
        return
    from dippm.show.report.console import console
    from dippm.show.report.explanation import difference_table

    console().print(difference_table(found, depth, rows))
    print_warnings(w for side in (found.before, found.after) for w in side.prediction.warnings)
    for side in (found.before, found.after):
        print_verify(side.prediction)


def _one_or_two(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _size(text: str) -> int:
    try:
        return whole_number(text)
    except ValueError:
        raise typer.BadParameter(f"batch {text!r} is no whole number") from None


def _layout(text: str) -> bool:
    if text not in ("channels-first", "channels-last"):
        raise typer.BadParameter(f"layout {text!r}: channels-first or channels-last")
    return text == "channels-last"
