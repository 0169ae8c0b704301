"""`dippm share` and `dippm parallel`: several processes on one GPU, one model on many GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from dippm.base.written import decimal_number, whole_number
from dippm.cli import options
from dippm.cli.compare import list_text
from dippm.cli.output import errors_reported, progress_shown, show
from dippm.errors import shortened

ALL = "all"


@options.conditions()
def share(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL", help="Paths of model files, or library models; one process per model."
        ),
    ] = None,
    models_from: options.ModelsFrom = None,
    sharing: Annotated[
        str | None,
        typer.Option(
            "--sharing", help="time-slicing, mps or mig. Default: mps, with --slices mig."
        ),
    ] = None,
    mps: Annotated[
        str | None,
        typer.Option(
            "--mps",
            metavar="LIMITS",
            help="MPS limits, one per process: percentages of the GPU's threads, such as 50,50, "
            "memory, such as 4096mb,8192mb, or both, such as 50:4096mb,50; all: no limits.",
        ),
    ] = None,
    slices: Annotated[
        str | None,
        typer.Option(
            "--slices", metavar="SLICES", help="MIG slices, one per process: 3g.20gb,4g.20gb."
        ),
    ] = None,
    copies: Annotated[
        int, typer.Option("--copies", "-n", help="Number of copies of the whole set of processes.")
    ] = 1,
    batch: Annotated[
        str,
        typer.Option("--batch", "-b", help="Samples per forward pass: one size, or one per model."),
    ] = "1",
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Predict slow-down, memory and energy of processes that share one GPU.

    Exit code 1 if the processes do not fit the memory at their 99 % bounds.
    """
    asked["batch"] = [int(size) for size in _numbers(batch, whole_number, "--batch")]
    if not models and models_from is None:
        raise typer.BadParameter("no model: give model files or names, or --from FILE")
    if mps is not None and slices is not None:
        raise typer.BadParameter("--mps and --slices exclude each other")
    percentages, memory_limits_mb = _mps_limits(mps or ALL)
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.sharing import share as answer
        from dippm.estimate.model_list import Candidate, candidates_of

        cases = [Candidate(model) for model in models or ()]
        if models_from is not None:
            cases += candidates_of(list_text(models_from))
        shared = answer(
            cases,
            sharing=sharing or ("mig" if slices is not None else "mps"),
            percentages=percentages,
            memory_limits_mb=memory_limits_mb,
            slices=None if slices is None else options.split_list(slices),
            copies=copies,
            **asked,
        )
    show("share", shared, json=json, csv=csv, html=html)
    if not shared.feasible:
        raise typer.Exit(1)


def _mps_limits(text: str) -> tuple[list[float] | None, list[float | None] | None]:
    """Return the percentages and the memory limits of MPS clients; None for no limits.

    Raises:
        BadParameter: if a part is none of these, or some processes have a percentage and others
            none.
    """
    if text.strip().casefold() == ALL:
        return None, None
    clients = [part.split(":") for part in options.split_list(text.casefold())]
    memory = [[word for word in client if word.endswith("mb")] for client in clients]
    threads = [[word for word in client if not word.endswith("mb")] for client in clients]
    if any(len(words) > 1 for words in (*memory, *threads)) or len({*map(len, threads)}) > 1:
        raise typer.BadParameter(
            f"{shortened(text)!r} has not one percentage for each process, or for none",
            param_hint="--mps",
        )
    percentages = (
        _numbers(",".join(word for [word] in threads), decimal_number, "--mps")
        if all(threads)
        else None
    )
    limits = [
        _numbers(words[0].removesuffix("mb"), decimal_number, "--mps")[0] if words else None
        for words in memory
    ]
    return percentages, limits if any(memory) else None


def _numbers(text: str, read: Callable[[str], float], option: str) -> list[float]:
    """Parse a comma-separated list of numbers.

    Raises:
        BadParameter: if one is not a number.
    """
    try:
        return [read(part.removesuffix("%")) for part in options.split_list(text)]
    except ValueError:
        raise typer.BadParameter(
            f"{shortened(text)!r} is not a list of numbers", param_hint=option
        ) from None


@options.conditions("mig")  # slices of a GPU cannot communicate
def parallel(
    model: options.Source,
    gpus: Annotated[int | None, typer.Option("--gpus", "-n", help="Total number of GPUs.")] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy", "-s", help="data, tensor or pipeline parallelism. Default: data."
        ),
    ] = None,
    data: Annotated[
        int | None,
        typer.Option(
            "--data", help="Number of copies of the model (data parallel), instead of --strategy."
        ),
    ] = None,
    tensor: Annotated[
        int | None,
        typer.Option(
            "--tensor", help="Number of GPUs that share each matrix product (tensor parallel)."
        ),
    ] = None,
    pipeline: Annotated[
        int | None, typer.Option("--pipeline", help="Number of pipeline stages.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Number of nodes with these GPUs.")] = 1,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            help="Link between the GPUs of a node: nvlink or pcie. Default: what the GPU has.",
        ),
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            "--network", help="Network between nodes, such as infiniband-ndr or ethernet-100."
        ),
    ] = "infiniband-hdr",
    micro_batches: Annotated[
        int | None,
        typer.Option("--micro-batches", help="Number of micro-batches of a pipelined step."),
    ] = None,
    one_process: Annotated[
        bool,
        typer.Option(
            "--one-process", help="Use one process for all GPUs, like torch.nn.DataParallel."
        ),
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="Samples per step and copy of the model.")
    ] = 1,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Estimate a step on many GPUs and nodes: data, tensor and pipeline parallelism."""
    layout: dict[str, Any] = {
        "gpus": gpus,
        "strategy": strategy,
        "data": data,
        "tensor": tensor,
        "pipeline": pipeline,
        "nodes": nodes,
        "link": link,
        "network": network,
        "micro_batches": micro_batches,
        "one_process": one_process,
    }
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.parallel.estimate import parallelize

        found = parallelize(model, batch=batch, **layout, **asked)
    show("parallel", found, json=json, csv=csv, html=html)
