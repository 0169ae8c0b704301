"""`dippm measure`."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json


def measure(
    model: options.Source,
    batch: options.Batch = 1,
    input: options.Input = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", help="cuda:0, ... or cpu; the first GPU if there is one."),
    ] = None,
    precision: options.Precision = "fp32",
    mode: options.Mode = "eager",
    phase: Annotated[
        str, typer.Option("--phase", help="inference, or train: forward, backward, optimiser.")
    ] = "inference",
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Memory layout of images.")
    ] = False,
    warm_up: Annotated[int, typer.Option("--warm-up", min=1, help="Untimed steps before.")] = 5,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Timed steps.")] = 30,
    energy_window_s: Annotated[
        float, typer.Option("--energy-window-s", min=0, help="0 leaves energy out.")
    ] = 2.0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also predict, and show the error.")
    ] = False,
    checkpoint: options.CheckpointName = None,
    trust: options.Trust = False,
    json: options.Json = False,
) -> None:
    """Run a model on this machine and measure latency, memory and energy."""
    with errors_reported(as_json=json):
        from dippm.measure.measurement import measure_model
        from dippm.measure.protocol import Regime, Settings

        regime = Regime(cast(Any, precision), cast(Any, mode), cast(Any, phase), channels_last)
        answer: Any = measure_model(
            model,
            input=input,
            batch=batch,
            device=device,
            regime=regime,
            settings=Settings(warm_up, repeat, energy_window_s=energy_window_s),
            trust=trust,
        )
        if compare:
            from dippm.api import predict
            from dippm.verification import verify

            prediction = predict(
                model,
                input=input,
                batch=batch,
                device=answer.device,
                checkpoint=checkpoint,
                precision=regime.precision,
                mode=regime.mode,
                channels_last=channels_last,
                trust=trust,
            )
            answer = verify(prediction, answer)
    if json:
        print_json(answer.to_dict())
    else:
        typer.echo(str(answer))
