"""`dippm calibrate`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, print_warnings, progress_shown
from dippm.devices import Calibration

if TYPE_CHECKING:
    from dippm.measure.calibration_rows import CalibrationRun

WORST = 3
"""Number of left-out models that are named, the worst first."""


def calibrate(
    save: Annotated[
        Path, typer.Option("--save", help="Device file to write, for --device of other commands.")
    ],
    rows: Annotated[
        Path | None,
        typer.Argument(
            metavar="[ROWS.csv]",
            help="CSV file of measurements: columns model and latency_ms, and optionally batch, "
            "precision, mode, timer, input. With --measure: file to write them to.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            help="GPU name or device file. Default: A100, with --measure the GPU of this machine.",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure ten architectures on this machine; an interrupted run is resumed.",
        ),
    ] = False,
    budget_s: Annotated[
        float, typer.Option("--budget-s", min=1, help="With --measure: time limit in s.")
    ] = 300.0,
    on: Annotated[
        str | None,
        typer.Option("--on", help="With --measure: device to measure on: cuda:0, cuda:1, ..."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help='Name of the calibrated device. Default: GPU name and "calibrated".'
        ),
    ] = None,
    checkpoint: options.CheckpointName = None,
    trust: options.Trust = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit the predictions for a GPU to your own measurements, and write a device file."""
    if rows is None and not measure:
        raise typer.BadParameter(
            "give ROWS.csv, or --measure to measure on this machine", param_hint="ROWS.csv"
        )
    done: CalibrationRun | None = None
    with errors_reported(as_json=json), progress_shown(quiet=quiet, still=measure):
        from dippm.api import load
        from dippm.devices import write_device
        from dippm.measure.calibration import calibrate as fitted
        from dippm.measure.calibration import calibrate_here

        if measure:
            rows = rows or save.with_suffix(".csv")
            predictor = load(checkpoint) if device is None else load(checkpoint, device=device)
            found, done = calibrate_here(
                rows, device, predictor=predictor, budget_s=budget_s, on=on, name=name
            )
        else:
            assert rows is not None
            asked = device or "A100"
            found = fitted(
                rows, asked, predictor=load(checkpoint, device=asked), name=name, trust=trust
            )
        write_device(found, save)
    made = found.calibration
    assert made is not None
    if json:
        document = _document(made, done) | {"device": found.name, "file": str(save)}
        print_json("calibrate", document)
        return
    if done is not None:
        sys.stdout.write(_what_was_measured(done, rows))
        print_warnings([f"{point}: not measured: {why}" for point, why in done.failed.items()])
    sys.stdout.write(
        f"{found.name}: {made.rows} measurements{_operators(made)}; kernels take "
        f"{math.exp(made.log_slowdown):.2f} × what was predicted, launches "
        f"{math.exp(made.log_launch):.2f} ×; {_errors(made)}.\n{_worst(made)}"
        f"Use it: --device {save}\n"
    )


def _document(made: Calibration, done: CalibrationRun | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "base": made.base,
        "rows": made.rows,
        "operator_rows": made.operator_rows,
        "slowdown": math.exp(made.log_slowdown),
        "launch_factor": math.exp(made.log_launch),
        "classes": {kind: math.exp(log) for kind, log in made.classes.items()},
        "operator_slowdown": math.exp(made.operator_log_slowdown),
        "operator_classes": {k: math.exp(log) for k, log in made.operator_classes.items()},
        "error_before_percent": _percent(made.log_error_before),
        "error_of_models_left_out_percent": _percent(made.log_error),
        "models_left_out": {model.name: _percent(model.log_error) for model in made.models},
    }
    if done is not None:
        document["measured"] = {
            "measured": done.measured,
            "kept": done.kept,
            "left": done.left,
            "failed": dict(done.failed),
            "software": done.software or None,
            "idle_power_w": done.idle_power_w,
            "context_mb": done.context_mb,
            "absent": dict(done.absent),
        }
    return document


def _percent(log_error: float | None) -> float | None:
    return None if log_error is None else 100 * math.expm1(log_error)


def _errors(made: Calibration) -> str:
    before, after = _percent(made.log_error_before), _percent(made.log_error)
    if after is None:
        return "too few models to tell the error"
    was = "" if before is None else f"±{before:.1f} % before, "
    return f"{was}±{after:.1f} % on models left out"


def _worst(made: Calibration) -> str:
    """Return a line with the models that had the largest errors while left out."""
    if not made.models:
        return ""
    worst = sorted(made.models, key=lambda model: -model.log_error)[:WORST]
    named = ", ".join(f"{m.name} ±{100 * math.expm1(m.log_error):.1f} %" for m in worst)
    return f"Furthest off while left out: {named}.\n"


def _what_was_measured(done: CalibrationRun, rows: Path | None) -> str:
    from dippm.base.printable import printable

    left = f", {done.left} left for want of time (--budget-s)" if done.left else ""
    lines = [f"Measured {done.measured} points, {done.kept} were in {rows}{left}."]
    idle, context = done.idle_power_w, done.context_mb
    absent = {name: printable(why) for name, why in done.absent.items()}
    lines += [
        f"Idle power: {absent['idle_power_w'] if idle is None else f'{idle:.0f} W'}.",
        f"Context: {absent['context_mb']}."
        if context is None
        else f"Context: {context:,.0f} MB; say so where memory counts: --context-mb {context:.0f}",
    ]
    return "\n".join(lines) + "\n"


def _operators(made: Calibration) -> str:
    if not made.operator_rows:
        return ""
    say_little = "" if made.has_models else ", which say little of whole models"
    return f", {made.operator_rows} of them of single operators{say_little}"
