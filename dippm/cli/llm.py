"""`dippm llm`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, show
from dippm.cli.progress import progress_shown


def llm(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A config.json, or the folder that has one.")
    ],
    device: options.DeviceName = "A100",
    batch: Annotated[int, typer.Option("--batch", "-b", help="Sequences at once.")] = 1,
    prompt: Annotated[int, typer.Option("--prompt", help="Tokens of each prompt.")] = 1024,
    generate: Annotated[
        int, typer.Option("--generate", help="Tokens that each sequence gets.")
    ] = 128,
    precision: Annotated[str, typer.Option("--precision", "-p", help="bf16 or fp16.")] = "bf16",
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help="Format of the weights: bf16, fp16, int8, fp8 or int4; as the configuration says.",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option("--cache", help="Format of keys and values: bf16, fp16 or fp8."),
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", help="GPUs that share the model; an estimate.")
    ] = 1,
    software: Annotated[
        str,
        typer.Option(
            "--software",
            help="graph (serving engine with CUDA graphs), engine (without) or eager "
            "(transformers' generate).",
        ),
    ] = "graph",
    host: options.Host = None,
    context_mb: options.ContextMb = None,
    link: Annotated[
        str | None, typer.Option("--link", help="Between GPUs: nvlink or pcie.")
    ] = None,
    checkpoint: options.CheckpointName = None,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict what serving a language model costs, from its configuration alone."""
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
