"""`dippm choose`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dippm.cli import options
from dippm.cli.output import error_document, errors_reported, report_error, show
from dippm.cli.pages import ready_to_plot
from dippm.cli.progress import progress_shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from dippm.decide.choice import Choice
    from dippm.errors import DippmError

DEFAULT_TOP = 12
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
    Path | None,
    typer.Option("--prices", metavar="FILE", help="TOML file of prices per hour."),
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
    """Ask, and show the answer in every form; an infeasible choice is shown and is an error."""
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
