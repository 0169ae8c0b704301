"""`dippm choose`, `mig`, `mig plan` and `request`: GPUs and MIG slices that hold a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dippm.cli import options
from dippm.cli.compare import list_text
from dippm.cli.output import (
    error_document,
    errors_reported,
    print_verify,
    print_warnings,
    progress_shown,
    ready_to_plot,
    report_error,
    show,
    write_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dippm.decide.choice import Choice
    from dippm.errors import DippmError

DEFAULT_TOP = 12
"""Default number of rows of a ranking."""
SloMs = Annotated[float | None, typer.Option("--slo-ms", help="Latency limit of a batch in ms.")]
SloAt = Annotated[
    str,
    typer.Option(
        "--slo-at",
        help="Latency that --slo-ms limits: upper (upper end of the 90 % interval) or value (the "
        "predicted latency).",
    ),
]
MaxMemory = Annotated[
    float | None,
    typer.Option(
        "--max-memory-mb",
        "--memory-limit",
        help="Limit of the 99 % memory bound in MiB, in addition to the memory of the device.",
    ),
]
PricesFile = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="TOML file of prices per hour.")
]

CarbonFile = Annotated[
    Path | None,
    typer.Option("--carbon", metavar="FILE", help="TOML file of grams of CO2 per kWh, by region."),
]
RegionName = Annotated[
    str | None,
    typer.Option("--region", help="Region of the --carbon file whose electricity is used."),
]
Copies = Annotated[
    int,
    typer.Option(
        "--copies", help="Processes of the model that share each GPU or MIG slice by MPS."
    ),
]


@options.conditions("device", "mig")  # every one of --devices and its slices is a row
def choose(
    model: options.Source,
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            "--device",
            "-d",
            help="GPU names and device files, separated by commas: A100,H100,my_gpu.toml; or all.",
        ),
    ] = "all",
    slices: Annotated[
        bool, typer.Option("--slices/--no-slices", help="Also rank MIG slices.")
    ] = True,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="Rank by latency, throughput, energy, cost or carbon per sample, or by size: the "
            "smallest GPU or slice within the limits.",
        ),
    ] = "latency",
    batch: Annotated[
        str,
        typer.Option(
            "--batch",
            "-b",
            help="Batch size, or a range such as 1:256: the best size of each GPU or slice.",
        ),
    ] = "1",
    slo_ms: SloMs = None,
    slo_at: SloAt = "upper",
    max_memory_mb: MaxMemory = None,
    prices: PricesFile = None,
    dataset_size: Annotated[
        int | None,
        typer.Option(
            "--dataset-size", help="Also estimate time and cost of an epoch of N samples."
        ),
    ] = None,
    carbon: CarbonFile = None,
    region: RegionName = None,
    copies: Copies = 1,
    *,
    top: Annotated[
        int, typer.Option("--top", min=1, help="Number of rows in the table.")
    ] = DEFAULT_TOP,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Rank GPUs and MIG slices for a model under limits, with the confidence of the first rank.

    A GPU or slice that misses a limit is a row with its reason. Exit code 1 if all of them do.
    """

    def ask() -> Choice:
        from dippm.decide.choice import choose as answer

        return answer(
            model,
            devices=options.split_list(devices),
            slices=slices,
            by=cast(Any, by),
            slo_ms=slo_ms,
            slo_at=cast(Any, slo_at),
            max_memory_mb=max_memory_mb,
            prices=prices,
            dataset_size=dataset_size,
            carbon=carbon,
            region=region,
            copies=copies,
            batch=batch,
            **asked,
        )

    answer_choice("choose", ask, json=json, csv=csv, html=html, quiet=quiet, top=top)


def answer_choice(
    name: str,
    ask: Callable[[], Choice],
    *,
    json: bool,
    csv: Path | None,
    html: Path | None,
    quiet: bool,
    **how: Any,
) -> None:
    """Compute a choice and show it in every requested form, even if nothing is feasible.

    Raises:
        typer.Exit: with code 1, after the choice is shown, if nothing is feasible.
    """
    failed: DippmError | None = None
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.errors import NothingFeasibleError

        ready_to_plot(html)
        try:
            choice = ask()
        except NothingFeasibleError as error:
            choice, failed = error.choice, error
    why = {"error": error_document(failed)} if failed else {}
    show(name, choice, json=json, csv=csv, html=html, document=choice.to_dict() | why, **how)
    if failed:
        if not json:
            report_error(failed, as_json=False)
        raise typer.Exit(1)


@options.conditions("mig")  # every slice is a row
def mig(
    model: options.Source,
    slo_ms: SloMs = None,
    slo_at: SloAt = "upper",
    max_memory_mb: MaxMemory = None,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Find the smallest MIG slice that holds a model at 99 % and meets a latency limit.

    Every slice is a row. Exit code 1 if not even the whole GPU is sufficient.
    """

    def ask() -> Choice:
        from dippm.decide.choice import smallest_slice

        return smallest_slice(
            model, slo_ms=slo_ms, slo_at=cast(Any, slo_at), max_memory_mb=max_memory_mb, **asked
        )

    answer_choice("mig", ask, json=json, csv=csv, html=html, quiet=quiet, slices=True)


@options.conditions("mig")  # the slices are the answer
def mig_plan(
    models: options.Models = None,
    models_from: options.ModelsFrom = None,
    slo_ms: SloMs = None,
    slo_at: SloAt = "upper",
    max_memory_mb: MaxMemory = None,
    mps: Annotated[
        int,
        typer.Option(
            "--mps",
            metavar="PROCESSES",
            help="Processes of each model, which share the slice of the model by MPS.",
        ),
    ] = 1,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Pack models onto the MIG slices of one GPU by predicted memory and latency.

    A model without a slice is a row with its reason, and exit code 1. No GPU is changed.
    """
    if not models and models_from is None:
        raise typer.BadParameter("no model: give model files or names, or --from FILE")
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.choice import pack
        from dippm.estimate.model_list import Candidate, candidates_of

        cases = [Candidate(model) for model in models or ()]
        if models_from is not None:
            cases += candidates_of(list_text(models_from))
        packing = pack(
            cases,
            slo_ms=slo_ms,
            slo_at=cast(Any, slo_at),
            max_memory_mb=max_memory_mb,
            copies=mps,
            **asked,
        )
    rows = [
        model.row() | {"error": error_document(model.error) if model.error else None}
        for model in packing.models
    ]
    document = packing.to_dict() | {"models": rows}
    show("mig-plan", packing, json=json, csv=csv, html=html, document=document)
    if packing.left_out:
        raise typer.Exit(1)


# What serves is timed as a whole, under torch.no_grad.
@options.conditions("device", "mig", "timer", "autograd")
def request(
    model: options.Source,
    slo_ms: SloMs = None,
    format: Annotated[
        str,
        typer.Option("--format", "-f", help="Output format: k8s, kueue, dra, hami, slurm or json."),
    ] = "k8s",
    devices: Annotated[
        str,
        typer.Option(
            "--devices", "--device", "-d", help="GPUs of the cluster, separated by commas; or all."
        ),
    ] = "A100",
    slices: Annotated[
        bool, typer.Option("--slices/--no-slices", help="Also consider MIG slices.")
    ] = True,
    probability: Annotated[
        float,
        typer.Option(
            "--probability", help="Probability with which a batch takes at most --slo-ms."
        ),
    ] = 0.95,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the created object. Default: derived from the model."),
    ] = None,
    image: Annotated[
        str, typer.Option("--image", help="Image of the container that runs the model.")
    ] = "IMAGE",
    resource: Annotated[
        str | None,
        typer.Option(
            "--resource",
            help="Name of the resource in the cluster: an extended resource, a device class, or a "
            "type of --gres.",
        ),
    ] = None,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Write a scheduler's resource request for the smallest sufficient GPU or MIG slice.

    It holds the model at 99 % and meets --slo-ms with --probability. Exit code 1 if there is none.
    """
    as_document = json or format == "json"
    with errors_reported(as_json=as_document), progress_shown(quiet=quiet):
        from dippm.decide.scheduling import find_format, request_resources
        from dippm.decide.scheduling.manifest import object_name

        written = None if format == "json" else find_format(format)
        called = object_name(name, model)
        found = request_resources(
            model,
            devices=options.split_list(devices),
            slices=slices,
            slo_ms=slo_ms,
            probability=probability,
            resource=resource,
            **asked,
        )
        text = None if written is None else written.render(found, name=called, image=image)
    if as_document:
        document = {"format": format, "manifest": text, **found.to_dict()}
        show("request", found, json=True, csv=csv, html=html, document=document)
        return
    with errors_reported(as_json=False):
        write_files(found, csv=csv, html=html)
    assert text is not None
    typer.echo(text, nl=False)
    print_warnings(found.notes)
    print_verify(found.prediction, sys.stderr)
