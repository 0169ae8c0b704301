"""D3.5's table 3 repeated on our data: five networks, 10 epochs, MAPE on all three parts.

    python -m training.studies.table3 --raw RAW_FOLDER

In addition to the random split, GraphSAGE and the MLP are run with whole architectures held out
(S1). Every network is trained with three seeds. Finished ones are stored, so the command can be
interrupted and repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from dataset.join.splits import by_architecture, random_split
from dippm.estimate.models.pmgns_network import PmgnsConfig
from training.pmgns.examples import GPU, Examples, load_examples, measured_rows
from training.pmgns.folds import run_fold
from training.pmgns.trainer import D35_LEARNING_RATE, TrainingConfig

NETWORKS = {"gat": "GAT", "gcn": "GCN", "gin": "GIN", "mlp": "MLP", "sage": "GraphSAGE"}
GROUPED = ("mlp", "sage")
SEEDS = (42, 43, 44)
D35 = {
    "gat": (0.497, 0.379, 0.367),
    "gcn": (0.212, 0.178, 0.175),
    "gin": (0.488, 0.394, 0.382),
    "mlp": (0.371, 0.387, 0.366),
    "sage": (0.182, 0.159, 0.160),
}
RESULTS = Path(__file__).with_name("results")
console = Console(stderr=True)


def main(
    raw: Annotated[Path, typer.Option(help="Raw graphs, <model>@<size>.json.gz.")],
    data: Annotated[Path | None, typer.Option(help="Measured tables.")] = None,
    runs: Annotated[Path, typer.Option(help="State of the runs.")] = Path("build/table3"),
    out: Annotated[Path, typer.Option(help="Folder of table3.json and .md.")] = RESULTS,
    rate: Annotated[
        str, typer.Option(help="table2 (2.754e-5 for each graph of a step) or finder.")
    ] = "table2",
    batch_size: Annotated[int, typer.Option(help="Graphs per step.")] = 4,
    s1_folds: Annotated[int, typer.Option(help="Of the five folds of S1, how many to run.")] = 1,
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
) -> None:
    """Train the networks that the results lack, then write both files."""
    torch.set_num_threads(threads)
    examples = load_examples(raw, runs / "graphs", PmgnsConfig.variant("paper"), data=data)
    config = TrainingConfig(
        epochs=10,
        batch_size=batch_size,
        learning_rate="finder" if rate == "finder" else D35_LEARNING_RATE * batch_size,
    )
    table = examples.table()
    s0, s1 = random_split(table), by_architecture(table)
    each = [("S0", s0, s0.folds[0], gnn) for gnn in NETWORKS]
    each += [(f"S1/{f.name}", s1, f, gnn) for f in s1.folds[:s1_folds] for gnn in GROUPED]
    # The slowest last, so that an interrupted run has as many rows as it can.
    each.sort(key=lambda job: (job[3] not in GROUPED, job[3] == "gat"))
    jobs = [(*job, seed) for seed in SEEDS for job in each]
    path = out / "table3.json"
    document = _started(path, examples, config, data)
    for name, split, fold, gnn, seed in jobs:
        of_network = document["results"].setdefault(f"{name} {gnn}", {})
        if str(seed) in of_network:
            continue
        console.print(f"{name} {NETWORKS[gnn]}, seed {seed}")
        network, seeded = PmgnsConfig.variant("paper", gnn=gnn), replace(config, seed=seed)
        folder = runs / name / gnn / str(seed)
        run = run_fold(examples, split, fold, network, seeded, folder=folder)
        of_network[str(seed)] = run.result
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
        (out / "table3.md").write_text(_markdown(document))


def _started(
    path: Path, examples: Examples, config: TrainingConfig, data: Path | None
) -> dict[str, Any]:
    """Return the document of an interrupted run with these settings, or a new one."""
    document: dict[str, Any] = {
        "command": "python -m training.studies.table3 --raw RAW_FOLDER"
        f" --rate {'finder' if config.learning_rate == 'finder' else 'table2'}"
        f" --batch-size {config.batch_size}",
        "data": {
            "source": "timm_infer",
            "gpu": GPU,
            "conditions": "amp, nchw, eager, torch 2.4, inference, wall time",
            "rows": len(examples),
            "rows_without_graph": len(measured_rows(data)) - len(examples),
            "architectures": len(set(examples.architectures)),
            "families": len(set(examples.families)),
            "graph_version": examples.graph_version,
        },
        "targets": "latency_ms only: no public table has memory and energy of vision graphs",
        "network": PmgnsConfig.variant("paper").to_dict(),
        "training": asdict(config),
        "results": {},
    }
    document = json.loads(json.dumps(document))
    if path.is_file():
        before: dict[str, Any] = json.loads(path.read_text())
        if {**before, "results": {}} == document:
            return before
    return document


def _markdown(document: Mapping[str, Any]) -> str:
    data, training, results = document["data"], document["training"], document["results"]
    s1 = sorted({key.split()[0] for key in results if key.startswith("S1")})
    lines = [
        "# D3.5, table 3, on our data",
        "",
        f"`{document['command']}`",
        "",
        f"{data['rows']} measured rows of {data['source']} ({data['gpu']}; {data['conditions']}), "
        f"{data['architectures']} architectures, {data['families']} families; "
        f"{data['rows_without_graph']} more rows have no graph yet. Target: {document['targets']}.",
        f"{training['epochs']} epochs, hidden 512, dropout 0.05, Adam, batch "
        f"{training['batch_size']} (rate: that of D3.5's table 2 times the batch), Huber loss on "
        "log latency, weights of the best validation epoch. D3.5's own numbers are a mean over "
        "memory, latency and energy on another data set (10,508 graphs, ten families, A100), "
        "so only the order compares.",
        "",
        "## Random split, 70/15/15, seed 42 (S0): MAPE as a fraction",
        "",
        "| network | training | validation | test | test median | D3.5: training, validation, test "
        "| learning rate | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for gnn, name in NETWORKS.items():
        reported = " / ".join(f"{value:.3f}" for value in D35[gnn])
        if not (row := results.get(f"S0 {gnn}")):
            lines.append(f"| {name} | not run yet | | | | {reported} | | |")
        else:
            rates = sorted({f"{run['learning_rate']:.3g}" for run in row.values()})
            lines.append(
                f"| {name} | {_cells(row)} | {reported} | {', '.join(rates)} | {len(row)} |"
            )
    lines += [
        "",
        f"## Whole architectures held out (S1, {len(s1)} of 5 folds): MAPE as a fraction",
        "",
        "A random split leaves the same architecture under another name, size or weight tag on both"
        " sides; this one does not.",
        "",
        "| network | fold | training | validation | test | test median | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for split in s1:
        for gnn in GROUPED:
            if row := results.get(f"{split} {gnn}"):
                lines.append(
                    f"| {NETWORKS[gnn]} | {split.split('/')[1]} | {_cells(row)} | {len(row)} |"
                )
    return "\n".join(lines) + "\n"


def _cells(of_seeds: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the means over seeds, each with the range where there is more than one."""
    columns = [(part, "mape") for part in ("training", "validation", "test")]
    columns.append(("test", "median_ape"))
    return " | ".join(
        _cell([run[part][error] for run in of_seeds.values()]) for part, error in columns
    )


def _cell(values: Sequence[float]) -> str:
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.3f}{spread}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    typer.run(main)
