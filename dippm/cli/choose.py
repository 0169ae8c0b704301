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
SloMs = Annotated[float | None, typer.Option("--slo-ms", help="Most that a batch may take, in ms.")]
SloAt = Annotated[
    str,
    typer.Option(
        "--slo-at",
        help="What has to hold to --slo-ms: upper, the upper end of the 90 % interval, or value, "
        "the predicted latency.",
    ),
]
MaxMemory = Annotated[
    float | None,
    typer.Option(
        "--max-memory-mb",
        "--memory-limit",
        help="Most memory in MB that the model may need at 99 %, beside what a GPU has.",
    ),
]
PricesFile = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="Prices of an hour: a TOML file."),
]

CarbonFile = Annotated[
    Path | None,
    typer.Option("--carbon", metavar="FILE", help="Grams per kWh by region: a TOML file."),
]
RegionName = Annotated[
    str | None, typer.Option("--region", help="Of --carbon: whose electricity is taken.")
]
Copies = Annotated[
    int,
    typer.Option("--copies", help="Processes of the model that share each place under MPS."),
]


@options.conditions("device", "mig")  # every one of --devices and its slices is a row
def choose(
    model: options.Source,
    devices: Annotated[
        str,
        typer.Option(
            "--devices", "--device", "-d", help="GPUs: A100,H100,my_gpu.toml; all is every one."
        ),
    ] = "all",
    slices: Annotated[
        bool, typer.Option("--slices/--no-slices", help="MIG slices beside whole GPUs.")
    ] = True,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="latency, throughput, energy, cost or carbon of a sample, or size: the smallest "
            "that will do.",
        ),
    ] = "latency",
    batch: Annotated[
        str,
        typer.Option("--batch", "-b", help="One size, or 1:256: each place takes its best."),
    ] = "1",
    slo_ms: SloMs = None,
    slo_at: SloAt = "upper",
    max_memory_mb: MaxMemory = None,
    prices: PricesFile = None,
    dataset_size: Annotated[
        int | None, typer.Option("--dataset-size", help="Samples of an epoch, for its cost.")
    ] = None,
    carbon: CarbonFile = None,
    region: RegionName = None,
    copies: Copies = 1,
    *,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows of the table.")] = DEFAULT_TOP,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Rank GPUs and MIG slices for a model, under limits, and say how sure the first place is.

    What will not do is a row with its reason; exit code 1 if that is all of them.
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
