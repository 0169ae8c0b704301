"""`dippm pipeline` and `dippm llm`: models that run in several stages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.base.written import decimal_number, whole_number
from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, progress_shown, show


@options.conditions("input", "framework", "phase", "optimizer", "checkpointing")
def pipeline(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE",
            help="Name of a shipped pipeline (--list), or a TOML file of stages.",
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option("--width", help="Width of the image in pixels.")
    ] = None,
    height: Annotated[
        int | None, typer.Option("--height", help="Height of the image in pixels.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Number of denoising steps.")] = None,
    guidance: Annotated[
        float | None,
        typer.Option(
            "--guidance", help="Guidance scale; above 1 a step runs with and without the text."
        ),
    ] = None,
    frames: Annotated[int | None, typer.Option("--frames", help="Number of video frames.")] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Other parameter of a shipped pipeline; may be repeated.",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="Samples per run: images, clips or questions.")
    ] = 1,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            "-p",
            help="Number format of stages that state none. Default: that of the pipeline.",
        ),
    ] = None,
    offload: Annotated[
        bool,
        typer.Option("--offload", help="Keep weights on the host while their stage does not run."),
    ] = False,
    *,
    tree: options.Tree = False,
    depth: options.Depth = 2,
    require_fit: options.RequireFit = False,
    csv: options.Csv = None,
    html: options.Html = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List shipped pipelines and their parameters, and exit.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Predict a pipeline of models that run one after the other, such as text to image."""
    if listing:
        _list(as_json=json)
        return
    if source is None:
        raise typer.BadParameter(
            "give the name of a pipeline or a TOML file; --list shows the names"
        )
    named = {"width": width, "height": height, "steps": steps, "guidance": guidance}
    given: dict[str, Any] = {
        key: value for key, value in {**named, "frames": frames}.items() if value is not None
    }
    given |= dict(_parameter(text) for text in parameters or ())
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.pipelines import pipeline as answer

        found = answer(source, batch=batch, precision=precision, offload=offload, **asked, **given)
    document = found.to_dict() | {"tree": found.tree.to_dict()} if tree else None
    show(
        "pipeline", found, json=json, csv=csv, html=html, document=document, tree=tree, depth=depth
    )
    if require_fit and not found.fits:
        from dippm.cli.output import report_error
        from dippm.errors import DoesNotFitError

        error = DoesNotFitError(
            f"{found.pipeline.name} is not known to fit {found.title.split(' · ')[2]}",
            "Use offload=True, a smaller batch, or another device.",
        )
        report_error(error, as_json=False)
        raise typer.Exit(1)


def _parameter(text: str) -> tuple[str, Any]:
    """Split "NAME=VALUE"; a numeric value becomes a number."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not name or not equals or not value:
        raise typer.BadParameter(f"{text[:80]!r} is not NAME=VALUE", param_hint="--set")
    for read in (whole_number, decimal_number):
        try:
            return name, read(value)
        except ValueError:
            continue
    return name, value


def _list(*, as_json: bool) -> None:
    from dippm.decide.pipelines.shipped import SHIPPED, parameters_of

    found = [
        {"name": name, "about": one.about, "parameters": parameters_of(name)}
        for name, one in SHIPPED.items()
    ]
    if as_json:
        print_json("pipelines", {"pipelines": found})
        return
    from dippm.show.report.console import console
    from dippm.show.report.tables import Column, TerminalTable

    rows = [
        (name, one.about, ", ".join(f"{k}={v}" for k, v in parameters_of(name).items()))
        for name, one in SHIPPED.items()
    ]
    columns = (Column("pipeline"), Column("", folds=True), Column("parameters", folds=True))
    console().print(TerminalTable(columns, rows))


def llm(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG", help="config.json of the model, or a folder with one."),
    ],
    device: options.DeviceName = "A100",
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="Number of concurrent sequences.")
    ] = 1,
    prompt: Annotated[int, typer.Option("--prompt", help="Prompt length in tokens.")] = 1024,
    generate: Annotated[
        int, typer.Option("--generate", help="Number of generated tokens per sequence.")
    ] = 128,
    precision: Annotated[
        str, typer.Option("--precision", "-p", help="Number format of activations: bf16 or fp16.")
    ] = "bf16",
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help="Number format of the weights: bf16, fp16, int8, fp8 or int4. Default: that of "
            "the configuration.",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            "--cache",
            help="Number format of the key-value cache: bf16, fp16 or fp8. Default: --precision.",
        ),
    ] = None,
    tensor_parallel: Annotated[
        int,
        typer.Option(
            "--tensor-parallel", help="Number of GPUs that share the model (an estimate)."
        ),
    ] = 1,
    software: Annotated[
        str,
        typer.Option(
            "--software",
            help="Serving software: graph (engine with CUDA graphs), engine (without CUDA graphs) "
            "or eager (generate of transformers).",
        ),
    ] = "graph",
    host: options.Host = None,
    context_mb: options.ContextMb = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link", help="Link between GPUs: nvlink or pcie. Default: what the GPU has."
        ),
    ] = None,
    checkpoint: options.CheckpointName = None,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict latency, throughput and memory of serving a language model from its configuration."""
    with errors_reported(as_json=json), progress_shown(quiet=quiet):
        from dippm.decide.language import language_model

        arguments: dict[str, Any] = {
            "device": device,
            "batch": batch,
            "prompt": prompt,
            "generated": generate,
            "precision": precision,
            "weights": weights,
            "cache": cache,
            "tensor_parallel": tensor_parallel,
            "software": software,
            "host": host,
            "context_mb": context_mb,
            "link": link,
            "checkpoint": checkpoint,
        }
        found = language_model(config, **arguments)
    show("llm", found, json=json, csv=csv, html=html)
