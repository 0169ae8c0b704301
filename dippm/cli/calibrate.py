"""`dippm calibrate`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json
from dippm.cli.progress import progress_shown
from dippm.devices import Calibration


def calibrate(
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS.csv",
            help="Measurements: model, latency_ms, and what differs of batch, precision, mode, "
            "timer, input.",
        ),
    ],
    save: Annotated[Path, typer.Option("--save", help="Device file to write, for --device.")],
    device: options.DeviceName = "A100",
    name: Annotated[str | None, typer.Option("--name", help="Of the calibrated device.")] = None,
    checkpoint: options.CheckpointName = None,
    trust: options.Trust = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit predictions for a GPU to your own measurements, as a device file."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.api import load
        from dippm.calibration import calibrate as fitted
        from dippm.devices import write_device

        found = fitted(
            rows, device, predictor=load(checkpoint, device=device), name=name, trust=trust
        )
        write_device(found, save)
    made = found.calibration
    assert made is not None
    error = None if made.log_error is None else 100 * math.expm1(made.log_error)
    if json:
        print_json(
            "calibrate",
            {
                "device": found.name,
                "file": str(save),
                "base": made.base,
                "rows": made.rows,
                "operator_rows": made.operator_rows,
                "slowdown": math.exp(made.log_slowdown),
                "launch_factor": math.exp(made.log_launch),
                "classes": {kind: math.exp(log) for kind, log in made.classes.items()},
                "operator_slowdown": math.exp(made.operator_log_slowdown),
                "operator_classes": {k: math.exp(log) for k, log in made.operator_classes.items()},
                "error_of_models_left_out_percent": error,
            },
        )
        return
    left_out = "too few models to tell the error" if error is None else f"±{error:.1f} % on models"
    sys.stdout.write(
        f"{found.name}: {made.rows} measurements{_operators(made)}; kernels take "
        f"{math.exp(made.log_slowdown):.2f} × what was predicted, launches "
        f"{math.exp(made.log_launch):.2f} ×; {left_out}"
        f"{' left out' if error is not None else ''}.\n"
        f"Use it: --device {save}\n"
    )


def _operators(made: Calibration) -> str:
    if not made.operator_rows:
        return ""
    say_little = "" if made.has_models else ", which say little of whole models"
    return f", {made.operator_rows} of them of single operators{say_little}"
