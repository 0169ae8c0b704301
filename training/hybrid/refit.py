"""Fits everything beside the law of a checkpoint anew: minutes, where a training is hours.

    python -m training.hybrid.refit checkpoints/hybrid-gpu/<version> \
        --data ../shared/data --graphs build/graphs --out checkpoints/hybrid-gpu/<new version>

Networks and trees stay; effects of GPUs, memory and power are those of today's tables. For each
laboratory the effects are fitted once more without it, and its rows are asked through the shipped
door of that checkpoint: what a user gets whose laboratory taught no effect. It did teach the law.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

import dippm
from dippm.models.hybrid import HOST_DECIDES
from dippm.models.kernel_law import KernelLaw
from dippm.pretrained.checkpoint import save_checkpoint
from training.hybrid.fit.checkpoint_law import effects_beside, effects_part, often_measured
from training.hybrid.fit.effects import Effects, RowKernels, row_kernels, sampled_rows
from training.hybrid.fit.memory import fit_memory, memory_lines
from training.hybrid.fit.power import evaluate, measured_power
from training.hybrid.judge.shipped_answers import shipped_answers
from training.hybrid.publish import card_of
from training.hybrid.rows.examples import GraphLookup, Row
from training.hybrid.rows.sources import load_rows

Config = dict[str, Any]
OLD_EFFECTS = ("tables", "usual")
FEWEST_ROWS = 5
TABLE = "latency, laboratory left out of the effects of GPUs, through the shipped door, percent"


def main(
    checkpoint: Annotated[Path, typer.Argument(help="folder of the checkpoint whose law is kept")],
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs")],
    out: Annotated[Path, typer.Option(help="checkpoint folder to write")],
    changes: Annotated[str, typer.Option(help="what is new, for the card")] = (
        "Effects of GPUs, memory and power fitted anew; the law is that of the version before."
    ),
) -> None:
    """Fit, ask the laboratories that were left out, and write the checkpoint."""
    from safetensors.torch import load_file

    if out.exists():
        raise typer.BadParameter(f"{out} is there already: a published version never changes")
    loaded = dippm.load(checkpoint).checkpoint
    law = loaded.predictor.law  # type: ignore[attr-defined]
    assert isinstance(law, KernelLaw)
    config: Config = dict(loaded.config)
    metrics = json.loads((checkpoint / "metrics.json").read_text(encoding="utf-8"))
    tensors = load_file(checkpoint / "model.safetensors")
    rows, graph = load_rows(data, graphs)
    chosen = sampled_rows(rows)
    [kernels] = row_kernels([law], chosen, graph)
    found = _fitted(config, chosen, kernels)
    for level, sd in found.sd.items():
        typer.echo(f"{level}: standard deviation {sd:.3f}")
    memory, memory_report = fit_memory(data, graphs)
    power, power_lines = evaluate(measured_power(data, graphs))
    new = _with_effects(config, found) | {"memory": asdict(memory), "power": asdict(power)}
    known = set(config["seen"]["devices"])
    often = {
        width: [gpu for gpu in gpus if gpu in known] for width, gpus in often_measured(rows).items()
    }
    new["seen"] = {**config["seen"], "often": often}
    lines = _left_out(new, tensors, chosen, kernels, graph)
    card = card_of({row.source for row in rows})
    new["card"] = {
        **card,
        "limits": [LIMIT, *card["limits"]],
        "changes": changes,
        "command": "python -m training.hybrid.refit <checkpoint> --data <tables> "
        "--graphs <raw graphs> --out checkpoints/hybrid-gpu/<version>",
    }
    kept = [line for line in metrics["summary"] if line["target"] == "latency_ms"]
    summary = [*kept, *memory_lines(memory_report), *power_lines]
    save_checkpoint(out, tensors, new, {TABLE: lines, **metrics, "summary": summary})
    typer.echo(pd.DataFrame(lines).to_string(index=False))
    typer.echo(f"wrote {out}")


def _fitted(config: Config, rows: Sequence[Row], kernels: Sequence[RowKernels]) -> Effects:
    rate = config["host"]["copy_bytes_per_ms"]
    return effects_beside(rows, kernels, _heads(config), rate)


def _heads(config: Config) -> list[dict[str, Any]]:
    law = config["law"]
    found = law["heads"] if "heads" in law else law["tables"]
    return [{name: own[name] for name in ("device", "mode", "table")} for own in found]


def _with_effects(config: Config, found: Effects) -> Config:
    part = {name: value for name, value in config["law"].items() if name not in OLD_EFFECTS}
    return {**config, "law": {**part, "heads": _heads(config), **effects_part(found)}}


def _left_out(
    config: Config,
    tensors: Mapping[str, Any],
    rows: Sequence[Row],
    kernels: Sequence[RowKernels],
    graph: GraphLookup,
) -> list[dict[str, Any]]:
    """Return errors by laboratory and GPU, each laboratory by effects that it did not teach.

    Rows that the host decides are left out: they show the laboratory's machine, which no question
    names. Only of GPUs that another laboratory taught, and of rows whose own head is not in the
    networks.
    """
    headed = {head["table"].partition(" ")[0] for head in _heads(config)}
    parts = []
    for source in sorted({row.source for row in rows} - headed):
        others = [i for i, row in enumerate(rows) if row.source != source]
        taught = {rows[i].device.name for i in others}
        tested = [row for row in rows if row.source == source and row.device.name in taught]
        if not tested:
            continue
        found = _fitted(config, [rows[i] for i in others], [kernels[i] for i in others])
        with TemporaryDirectory() as folder:
            fold = Path(folder) / "fold" / "0.0.0"
            save_checkpoint(fold, dict(tensors), _with_effects(config, found), {"summary": []})
            answers = shipped_answers(dippm.load(fold), tested, graph)
        answers["laboratory"] = source
        answers["gpu"] = [row.device.name for row in tested]
        answers["work"] = [row.kind for row in tested]
        parts.append(answers)
    every = pd.concat(parts, ignore_index=True).dropna(subset="predicted_ms")
    device = every[every["host_share"] <= HOST_DECIDES]
    lines = []
    for (source, gpu, work), mine in device.groupby(["laboratory", "gpu", "work"]):
        if len(mine) < FEWEST_ROWS:
            continue
        error = np.log(mine["predicted_ms"] / mine["measured_ms"])
        covered = mine["measured_ms"].between(mine["low_ms"], mine["high_ms"])
        lines.append(
            {
                "laboratory": source,
                "gpu": gpu,
                "work": work,
                "n": len(mine),
                "median_ape": round(100 * float(np.expm1(error).abs().median()), 1),
                "median_log_error": round(float(error.median()), 3),
                "coverage_90": round(100 * float(covered.mean()), 1),
            }
        )
    return lines


LIMIT = (
    "The law is an earlier version's, and so are the lines of latency by split: see its card. What "
    "a question gets on a GPU that another laboratory measured is in the table of laboratories "
    "left out, whose law knew them. Energy errors are not stated: those of earlier versions were "
    "of another power."
)


if __name__ == "__main__":
    typer.run(main)
