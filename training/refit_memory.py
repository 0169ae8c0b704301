"""Writes a version of a checkpoint with its model of memory fitted anew, and all else as it was.

    python -m training.refit_memory --checkpoint checkpoints/hybrid-gpu/<version> \
        --data ../shared/data --graphs build/graphs [--collected dataset/data/<device>] \
        --out checkpoints/hybrid-gpu/<new version>

What is learned of time and power does not depend on the memory, so no network is fitted. That of
training steps has the context of a checkpoint of inference (`--inference`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from safetensors.torch import load_file

from dataset.join.graph_store import GraphStore
from dippm.cli.output import errors_reported
from dippm.errors import CheckpointError
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.memory import MemoryModel
from dippm.estimate.models.predictor import phases_of
from dippm.estimate.pretrained.checkpoint import save_checkpoint
from dippm.estimate.pretrained.store import CONFIG, METRICS, WEIGHTS
from training.evaluation.version_regression import SINCE, regression_table
from training.hybrid.fit.memory import fit_memory, memory_lines
from training.hybrid.publish import card_of
from training.hybrid.rows.absent_sources import absent_sources
from training.hybrid.rows.collected_rows import read_collected
from training.provenance import check_is_new, describe_making
from training.steps.memory import (
    collected_step_memory,
    fit_step_memory,
    installed,
    memory_part,
    step_memory_samples,
)

SERVES = ("10.7.5", Hybrid.feature_version)
"""Features whose networks serve with today's kernels: kernels 11 differ from 10 for recurrent
layers alone, by the time of steps that wait for each other, which no network learns."""
Document = dict[str, Any]
Lines = Sequence[Mapping[str, Any]]


def main(
    checkpoint: Annotated[Path, typer.Option(help="version to take all but the memory from")],
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    out: Annotated[Path, typer.Option(help="checkpoint folder to write", callback=check_is_new)],
    collected: Annotated[
        list[Path] | None, typer.Option(help="set of our own, of one GPU; may be given again")
    ] = None,
    inference: Annotated[
        Path | None, typer.Option(help="checkpoint of inference, for one of training steps")
    ] = None,
    changes: Annotated[str, typer.Option(help="what is new, for the card")] = "Memory fitted anew.",
) -> None:
    """Write a version of a checkpoint with its model of memory fitted anew."""
    config, ours = _read(checkpoint, CONFIG), collected or ()
    options = {"checkpoint": checkpoint, "data": data, "graphs": graphs, "collected": collected}
    card: Document = {"changes": changes}
    if phases_of(config) == ("train",):
        if inference is None:
            raise typer.BadParameter("a checkpoint of training steps needs --inference as well")
        options["inference"] = inference
        memory, lines = _of_steps(data, graphs, ours, _read(inference, CONFIG)["memory"])
    else:
        fitted, report = fit_memory(data, graphs, [read_collected(one, graphs) for one in ours])
        memory, lines = asdict(fitted), memory_lines(report)
        card["limits"] = card_of((), absent_sources(data, ours=bool(ours)))["limits"]
    card["command"] = describe_making("training.refit_memory", out, options)["command"]
    write_version(checkpoint, out, memory, lines, card)
    typer.echo(f"wrote {out}")


def write_version(
    checkpoint: Path, out: Path, memory: Mapping[str, Any], lines: Lines, card: Mapping[str, Any]
) -> None:
    """Write a version of a checkpoint that has another model of memory.

    Args:
        checkpoint: folder of the version that all else is taken from.
        out: folder to write.
        memory: part "memory" of the configuration.
        lines: lines of the card with its errors.
        card: texts of the card that are new; the command comes after that of the other version.

    Raises:
        CheckpointError: if the networks of the checkpoint are of other features.
    """
    config, metrics = _read(checkpoint, CONFIG), _read(checkpoint, METRICS)
    if config["feature_version"] not in SERVES:
        raise CheckpointError(
            f"{checkpoint} has features {config['feature_version']}: its networks do not serve now",
            "Train a new one: `python -m training.hybrid.train`.",
        )
    commands = f"{config['card']['command']}\n{card['command']}"
    config["feature_version"] = Hybrid.feature_version
    config["memory"] = dict(memory)
    config["training"] |= {"command": commands}
    config["card"] |= {**card, "command": commands}
    others = [line for line in metrics.pop("summary") if line["target"] != "memory_mb"]
    summary = [*others, *lines]
    tables = {name: rows for name, rows in metrics.items() if not name.startswith(SINCE)}
    metrics = {"summary": summary, **regression_table(checkpoint, summary), **tables}
    save_checkpoint(out, load_file(checkpoint / WEIGHTS), config, metrics)


def _of_steps(
    data: Path, graphs: Path, collected: Sequence[Path], inference: Mapping[str, Any]
) -> tuple[Document, Lines]:
    """Return the part "memory" of training steps, and the lines of the card with its errors."""
    store, context = GraphStore(graphs), MemoryModel.from_config(inference)
    sets = [read_collected(folder, graphs, phase="train") for folder in collected]
    ours = [sample for found in sets for sample in collected_step_memory(found, store)]
    samples = [*step_memory_samples(data, store), *ours]
    fitted, lines = fit_step_memory(samples, context, installed(context, data, store))
    return dict(memory_part(fitted)), lines


def _read(checkpoint: Path, name: str) -> Document:
    found: Document = json.loads((checkpoint / name).read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    typer.run(errors_reported(as_json=False)(main))
