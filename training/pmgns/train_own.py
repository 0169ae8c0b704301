"""Train `pmgns` and what it is compared with on a set of our own; write the checkpoint.

    python -m training.pmgns.train_own build/collected/<device> --out checkpoints/<name>/<version>

The folder is what `python -m dataset.build_collected` wrote. GraphSAGE and every simple predictor
run on all splits; the other networks on S0 and S1. Each finished run is kept, so the command can
be interrupted and repeated. `--config training/configs/own_small.yaml` is the size of a test run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import yaml
from rich.console import Console
from rich.table import Table

from dataset.join.splits import Split
from dataset.measured.location import DataNotFoundError
from dippm.cli.output import errors_reported
from dippm.devices import find
from dippm.estimate.models.pmgns_network import PmgnsConfig
from dippm.estimate.pretrained import Checkpoint, save_checkpoint
from training.evaluation.held_out import HeldOut
from training.evaluation.simple import run_simple
from training.evaluation.version_regression import regression_table
from training.pmgns import report
from training.pmgns.examples import Examples
from training.pmgns.folds import run_network, train_fold
from training.pmgns.selection import (
    Selection,
    everything,
    examples_of,
    load_selection,
    restricted,
    told_apart,
)
from training.pmgns.trainer import TrainingConfig
from training.provenance import check_is_new

NETWORKS = {"sage": "GraphSAGE", "gat": "GAT", "gcn": "GCN", "gin": "GIN", "mlp": "MLP"}
SHIPPED = "sage"
SPLITS = ("S0", "S1", "S2-5")
COMPARED_ON = ("S0", "S1")
console = Console(stderr=True)


def main(
    joined: Annotated[Path, typer.Argument(help="Folder that `dataset.build_collected` wrote.")],
    out: Annotated[
        Path,
        typer.Option(help="Checkpoint folder to write, <name>/<version>.", callback=check_is_new),
    ],
    config: Annotated[Path, typer.Option(help="Network and training, YAML.")] = Path(
        "training/configs/own.yaml"
    ),
    device: Annotated[str | None, typer.Option(help="Of the rows; most frequent.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of the rows; most frequent. all: tell them apart.")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="nchw, nhwc, or all: tell them apart.")] = None,
    phase: Annotated[str | None, typer.Option(help="inference or train.")] = None,
    splits: Annotated[str, typer.Option(help="Names, or S2 for one fold per family.")] = ",".join(
        SPLITS
    ),
    networks: Annotated[str, typer.Option(help="Besides sage, on S0 and S1.")] = "gat,gcn,gin,mlp",
    runs: Annotated[Path | None, typer.Option(help="State of the runs.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the configuration's.")] = None,
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
    on: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
    since: Annotated[Path | None, typer.Option(help="Earlier version, to compare with.")] = None,
    changes: Annotated[str, typer.Option(help="What is new, for the card.")] = "First version.",
) -> None:
    """Evaluate on every split, train the shipped network, write the checkpoint."""
    torch.set_num_threads(threads)
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    training = TrainingConfig(**document["training"])
    if epochs:
        training = replace(training, epochs=epochs)
    with errors_reported(as_json=False):
        selection = load_selection(
            joined,
            gpu=device and find(device).name,
            precision=precision,
            phase=phase,
            layout=layout,
        )
        checkpoint = train_own(
            joined,
            out,
            selection=selection,
            network=_network(document["network"], selection),
            training=training,
            splits=splits.split(","),
            others=tuple(name for name in networks.split(",") if name),
            runs=runs or joined / "runs",
            on=on,
            since=since,
            changes=changes,
        )
    _show(checkpoint)


def train_own(
    joined: Path,
    out: Path,
    *,
    selection: Selection,
    network: PmgnsConfig,
    training: TrainingConfig,
    splits: Sequence[str],
    others: Sequence[str],
    runs: Path,
    on: str = "cpu",
    since: Path | None = None,
    changes: str = "First version.",
) -> Checkpoint:
    """Run everything and write the checkpoint; see `main`."""
    _known_device(selection.conditions["gpu"])
    examples = _moved(examples_of(selection, joined, runs / "graphs", network), on)
    # The keys of the joined table decide; the graphs were read again under the same rules.
    table = selection.rows
    chosen = [_split(joined, name, selection) for name in splits]
    held_out_sets: list[HeldOut] = []
    for split in chosen:
        held_out_sets += run_simple(split, table, selection.targets)
        names = [SHIPPED, *(others if split.name in COMPARED_ON else ())]
        for gnn in names:
            console.print(f"{split.name} {NETWORKS[gnn]}: {len(split.folds)} folds")
            held_out_sets.append(
                run_network(
                    examples,
                    split,
                    replace(network, gnn=gnn),
                    training,
                    name=NETWORKS[gnn],
                    folder=runs,
                    table=table,
                )
            )
    console.print("shipped network")
    last = chosen[-1]
    done = train_fold(
        examples,
        replace(last, rows=tuple(table["row_id"])),
        everything(last, table),
        network,
        training,
        folder=runs / "shipped" / network.gnn,
    )
    manifest = json.loads((joined / "manifest.json").read_text(encoding="utf-8"))
    shipped = NETWORKS[SHIPPED]
    document = report.config(
        selection,
        _moved(examples, "cpu"),
        network,
        training,
        strictest=report.strictest_of(held_out_sets, shipped),
        manifest=manifest,
        command=_command(joined, out, splits),
        epochs=done.best_epoch + 1,
    )
    weights = {name: tensor.cpu() for name, tensor in done.network.state_dict().items()}
    document["card"]["changes"] = changes
    measured = report.metrics(held_out_sets, selection, manifest, shipped)
    if since:
        measured |= regression_table(since, measured["summary"])
    return save_checkpoint(out, weights, document, measured)


def _network(document: dict[str, Any], selection: Selection) -> PmgnsConfig:
    switches = {("name" if key == "variant" else key): v for key, v in document.items()}
    own = {"targets": selection.targets, "precisions": told_apart(selection)}
    return PmgnsConfig.variant(**{"name": "paper", **switches, **own})


def _split(joined: Path, name: str, selection: Selection) -> Split:
    path = joined / "splits" / selection.conditions["phase"] / f"{name}.json"
    if not path.is_file():
        raise DataNotFoundError(
            f"no {path}",
            "`python -m dataset.build_collected` writes the splits that the set allows.",
        )
    return restricted(Split.load(path), selection.rows)


def _known_device(name: str) -> None:
    """Refuse early: a checkpoint whose device cannot be named answers nothing.

    Raises:
        UnknownNameError: if the catalogue lacks the device.
    """
    find(name)


def _moved(examples: Examples, device: str) -> Examples:
    graphs = [
        replace(
            graph,
            x=graph.x.to(device),
            edge_index=graph.edge_index.to(device),
            static=graph.static.to(device),
            batch=graph.batch.to(device),
        )
        for graph in examples.graphs
    ]
    return replace(examples, graphs=graphs, targets=examples.targets.to(device))


def _command(joined: Path, out: Path, splits: Sequence[str]) -> str:
    name, table = "/".join(out.resolve().parts[-2:]), f"build/collected/{joined.name}"
    return (
        f"python -m dataset.build_collected dataset/data/{joined.name} --out {table}\n"
        f"python -m training.pmgns.train_own {table} --splits {','.join(splits)} "
        f"--out checkpoints/{name}"
    )


def _show(checkpoint: Checkpoint) -> None:
    shown = Table(title=f"{checkpoint.name} {checkpoint.version}")
    rows = checkpoint.metrics["all predictors on the same rows and folds, percent"]
    for column in rows[0]:
        shown.add_column(column.replace("_", " "))
    for row in rows:
        shown.add_row(*map(str, row.values()))
    Console(width=120).print(shown)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    typer.run(main)
