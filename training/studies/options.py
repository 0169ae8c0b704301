"""Shared options of the studies of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Precision = Annotated[str, typer.Option(help="fp32, fp16 or amp")]
Batch = Annotated[int, typer.Option(help="samples")]
ChannelsLast = Annotated[bool, typer.Option(help="images are held so")]
Graphs = Annotated[Path | None, typer.Option(help="of dataset.raw_graphs, to take graphs from")]
Listed = Annotated[bool, typer.Option("--list", help="both lists side by side")]
ListOf = Annotated[Path | None, typer.Option(help="file with more models")]
Models = Annotated[
    list[str] | None, typer.Argument(help="resnet50, torchvision:..., transformers:...")
]
Results = Annotated[Path | None, typer.Option(help="stem of result files to write")]
Summary = Annotated[bool, typer.Option("--summary", help="no table for each model")]
