"""`dippm run`: a command, measured from outside."""

from __future__ import annotations

from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD [ARGS]...", help="The command, after a --.")
    ],
    metrics: Annotated[
        str, typer.Option("--metrics", help="Sources: tree,host,nvml@5; radT's listeners: smi+top.")
    ] = "tree",
    hz: options.Hz = 10.0,
    device: Annotated[
        str, typer.Option("--device", "-d", help="GPU of such sources: index or UUID.")
    ] = "0",
    name: Annotated[str, typer.Option("--name", help="Of the run; else the command.")] = "",
    experiment: Annotated[
        str, typer.Option("--experiment", "-e", help="What runs are gathered under.")
    ] = "",
    store: options.RunStore = "",
    description: Annotated[str, typer.Option("--description", help="A sentence.")] = "",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Predict this model and keep it beside the run."),
    ] = None,
    batch: options.Batch = 1,
    input: options.Input = None,
    precision: options.Precision = "fp32",
    mode: options.Mode = "eager",
    predict_device: Annotated[
        str | None,
        typer.Option("--predict-device", help="GPU of the prediction; what this machine has."),
    ] = None,
    profile: Annotated[
        str,
        typer.Option("--profile", help="One iteration by torch, nsys or ncu; times do not count."),
    ] = "",
    profile_at: Annotated[
        int, typer.Option("--profile-at", min=0, help="The iteration, counted from 0.")
    ] = 20,
    timeout_s: options.EndAfter = 0.0,
    json: Annotated[
        bool, typer.Option("--json", help="At the end, one line of JSON about the run on stdout.")
    ] = False,
) -> None:
    """Run a command as it would run alone, and record what it and all it starts use.

    The exit code is the command's; 128 + n if signal n ended it.
    """
    with errors_reported(as_json=json):
        from dippm.runs.tracking.command import become
        from dippm.runs.tracking.run_config import RunConfig, checked

        prediction = None
        if model is not None:
            from dippm.runs.tracking.expectation import expectation_beside

            prediction = expectation_beside(
                model,
                batch=batch,
                input=input,
                precision=precision,
                mode=mode,
                device=predict_device,
            )
        config = checked(
            RunConfig(
                command=tuple(command),
                name=name,
                experiment=experiment,
                store=store,
                metrics=tuple(filter(None, (word.strip() for word in metrics.split(",")))),
                hz=hz,
                device=device,
                description=description,
                params=_pairs(param),
                tags=_pairs(tag),
                timeout_s=timeout_s,
                json=json,
                prediction=prediction,
                profile=profile,
                profile_at=profile_at,
            )
        )
        become(config)


def _pairs(words: list[str] | None) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words or ())}
