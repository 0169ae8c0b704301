"""`dippm run` and `dippm track`: commands, scripts and plans, measured from outside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported
from dippm.cli.plan import carry_out

if TYPE_CHECKING:
    from dippm.runs.tracking.run_config import RunConfig

Experiment = Annotated[
    str,
    typer.Option(
        "--experiment", "-e", help="Experiment of the run: a name under which runs are grouped."
    ),
]


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="CMD [ARGS]...", help="Command to run and its arguments, after --."),
    ],
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics",
            help="Sources to sample, separated by commas, with a rate in Hz after @: "
            "tree,host,nvml@5; or radT's listeners: smi+top.",
        ),
    ] = "tree",
    hz: options.Hz = 10.0,
    device: Annotated[
        str, typer.Option("--device", "-d", help="GPU to sample: index or UUID.")
    ] = "0",
    name: Annotated[
        str, typer.Option("--name", help="Name of the run. Default: the command.")
    ] = "",
    experiment: Experiment = "",
    store: options.RunStore = "",
    description: Annotated[str, typer.Option("--description", help="Description of the run.")] = "",
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="KEY=VALUE", help="Tag of the run; may be repeated."),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="KEY=VALUE", help="Parameter of the run; may be repeated."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Also predict this model, and store the prediction with the run."
        ),
    ] = None,
    batch: options.Batch = 1,
    input: options.Input = None,
    precision: options.Precision = "fp32",
    mode: options.Mode = "eager",
    predict_device: Annotated[
        str | None,
        typer.Option(
            "--predict-device", help="Device of the prediction. Default: that of this machine."
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            help="Profile one iteration with torch, nsys or ncu. Such a run does not count as a "
            "measurement.",
        ),
    ] = "",
    profile_at: Annotated[
        int, typer.Option("--profile-at", min=0, help="Index of the profiled iteration, from 0.")
    ] = 20,
    timeout_s: options.EndAfter = 0.0,
    json: Annotated[
        bool, typer.Option("--json", help="At the end, print one line of JSON about the run.")
    ] = False,
) -> None:
    """Run a command unchanged, and record the resources that it and its child processes use.

    The exit code is that of the command, or 128 + n if signal n ended it.
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


def track(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE [ARGS]...",
            help="Python file, any other command, or a plan, with its arguments.",
        ),
    ],
    experiment: Experiment = "",
    workload: Annotated[
        str,
        typer.Option(
            "--workload", "-w", help="Workload of the run: a name that related runs share."
        ),
    ] = "",
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            "-d",
            help="GPUs to use, by index or UUID: 0, 1+2; -: none. Default: no change.",
        ),
    ] = "",
    collocation: Annotated[
        str,
        typer.Option(
            "--collocation",
            "-c",
            help="How the GPU is shared: mps, or a MIG profile such as 3g.20gb; -: not shared.",
        ),
    ] = "-",
    listeners: Annotated[
        str,
        typer.Option(
            "--listeners",
            "-l",
            help="radT listeners to sample: smi+top+dcgmi+... Default: all that work here.",
        ),
    ] = "",
    name: Annotated[
        str, typer.Option("--name", "-n", help="Name of the run. Default: the command.")
    ] = "",
    rerun: Annotated[
        bool, typer.Option("--rerun", "-r", help="Of a plan: also run rows that failed.")
    ] = False,
    timeout_s: options.EndAfter = 0.0,
    hz: options.Hz = 10.0,
    store: options.RunStore = "",
    json: options.Json = False,
) -> None:
    """Run a script or any command unchanged, and record the resources that it uses.

    Options come before FILE; its own arguments follow. The exit code is that of the command.
    """
    with errors_reported(as_json=json):
        from dippm.runs.plans.plan import is_plan

        if is_plan(command[0]) and Path(command[0]).exists():
            from dippm.runs.plans.options import PlanOptions
            from dippm.runs.plans.row import of_a_plan_only

            of_a_plan_only(
                experiment=experiment,
                workload=workload,
                devices=devices,
                collocation=collocation.strip("-"),
                listeners=listeners,
                name=name,
            )
            terms = PlanOptions(rerun_failed=rerun, timeout_s=timeout_s, hz=hz, store=store)
            carry_out(Path(command[0]), terms, as_json=json, quiet=False)
            return
        from dippm.runs.plans.command_line import run_config_of_words
        from dippm.runs.plans.row import read_devices, read_sharing

        chosen, sharing = read_devices(devices), read_sharing(collocation)
        config = run_config_of_words(
            command,
            experiment=experiment,
            workload=workload,
            devices=chosen,
            sharing=sharing,
            listeners=listeners,
            name=name,
            timeout_s=timeout_s,
            hz=hz,
            store=store,
            json=json,
        )
        code = _run_placed(config, chosen, sharing)
    raise typer.Exit(code)


def _run_placed(config: RunConfig, devices: tuple[str, ...], sharing: str) -> int:
    """Replace this process by the runner of the command, unless there is something to undo."""
    import os

    from dippm.runs.plans.command_line import environment_on, run_seated
    from dippm.runs.tracking.command import become

    if sharing:
        return run_seated(config, devices or ("0",), sharing)
    if devices:
        os.environ.update(environment_on(devices))
    become(config)
    return 0
