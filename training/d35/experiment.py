"""Train the networks of `training/configs/d35.yaml` on the graphs of `dataset.d35`.

    python -m training.d35.experiment FOLDER --runs build/d35

Every epoch is kept: the command may be killed at any time and goes on where it was, and finished
jobs are passed over. `results.json` and `results.md` in the folder of the runs are written after
each job; `log.csv` of a run is its curve. Two processes may share the folder if each does other
entries (`--only wide` beside the rest, one core each). Labels are predictions of the default
checkpoint, so every error here says how well a network imitates it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
import yaml
from rich.console import Console

from dataset.d35.labels import labels_folder
from dataset.join.splits import Fold, Split, by_architecture, family_out, random_split
from dippm.cli.output import errors_reported
from dippm.estimate.models.pmgns_network import Pmgns, PmgnsConfig
from dippm.estimate.pretrained import find
from training.d35.examples import about_labels, load_examples
from training.d35.report import errors_by_target, markdown
from training.pmgns.examples import Examples
from training.pmgns.folds import train_fold
from training.pmgns.selection import everything, restricted
from training.pmgns.trainer import Training, TrainingConfig, find_rate, predictions

CONFIG = Path(__file__).parents[1] / "configs" / "d35.yaml"
ALL = "all"
SPLITS: dict[str, Callable[[pd.DataFrame], Split]] = {
    "S0": random_split,
    "S1": by_architecture,
    "S2": family_out,
}
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Job:
    """One network on one fold.

    Attributes:
        name: name of the entry in the configuration.
        split: "S0", "S1", "S2", or "all" for what ships.
        fold: its number in the split.
        network: architecture and targets.
        training: how.
    """

    name: str
    split: str
    fold: int
    network: PmgnsConfig
    training: TrainingConfig

    @property
    def key(self) -> str:
        """What results and folders call it: "table3/S0/0/sage"."""
        return f"{self.name}/{self.split}/{self.fold}/{self.network.gnn}"

    @property
    def identity(self) -> str:
        """A digest of its settings."""
        settings = [self.network.to_dict(), asdict(self.training)]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]


def main(
    folder: Annotated[Path, typer.Argument(help="That `dataset.d35.graphs` wrote.")],
    runs: Annotated[Path, typer.Option(help="State of the runs.")] = Path("build/d35"),
    labels: Annotated[
        Path | None, typer.Option(help="Folder of labels; those of the default checkpoint.")
    ] = None,
    config: Annotated[Path, typer.Option(help="Jobs, YAML.")] = CONFIG,
    only: Annotated[list[str] | None, typer.Option(help="Entry to do; may be given again.")] = None,
    most: Annotated[int | None, typer.Option(help="Graphs of each family, for a trial.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the configuration's.")] = None,
    threads: Annotated[
        int, typer.Option(help="Of torch; two on a busy machine are many times slower than one.")
    ] = 1,
) -> None:
    """Train what is not finished, in the order of the configuration."""
    torch.set_num_threads(threads)
    with errors_reported(as_json=False):
        labels = labels or labels_folder(folder, find())
        examples = load_examples(folder, labels, most=most)
        about = about_labels(labels)
        jobs = list(jobs_of(yaml.safe_load(config.read_text(encoding="utf-8")), epochs))
    chosen = [job for job in jobs if not only or job.name in only]
    document = started(runs, examples, about)
    for job in chosen:
        if document["results"].get(job.key, {}).get("identity") == job.identity:
            continue
        console.print(f"{job.key}: {job.training.epochs} epochs")
        result = run(job, examples, runs)
        document = started(runs, examples, about)  # another process may have added to it
        document["results"][job.key] = result
        write_results(runs, document)


def jobs_of(document: Mapping[str, Any], epochs: int | None = None) -> Iterator[Job]:
    """Yield the jobs of a configuration in its order.

    Args:
        document: configuration, see `training/configs/d35.yaml`.
        epochs: instead of those of the configuration.
    """
    for name, entry in document.items():
        training = TrainingConfig(**entry["training"])
        if epochs:
            training = replace(training, epochs=epochs)
        for split, folds in entry["splits"].items():
            for fold in folds:
                for gnn in entry["gnn"]:
                    network = PmgnsConfig.variant("paper", gnn=gnn, **entry["network"])
                    yield Job(name, split, fold, network, training)


def run(job: Job, examples: Examples, runs: Path) -> dict[str, Any]:
    """Train a job, or finish it; return learning rate, epochs, speed, curve, errors by part."""
    split, fold = fold_of(job, examples)
    folder = runs / job.key
    parts = {"training": split.train(fold), "validation": fold.validation, "test": fold.test}
    ranged = {}
    if job.training.learning_rate == "finder":
        ranged["range_test"] = range_test(job, examples, parts["training"], folder)
    before = _epochs_done(folder)
    start = time.monotonic()
    done = train_fold(examples, split, fold, job.network, job.training, folder=folder)
    seconds = time.monotonic() - start
    seen = (len(done.log) - before) * len(parts["training"])
    return {
        "identity": job.identity,
        "fold": fold.name,
        "hidden": job.network.hidden,
        "epochs": len(done.log),
        "best_epoch": done.best_epoch,
        "learning_rate": done.learning_rate,
        "batch_size": job.training.batch_size,
        "parameters": sum(p.numel() for p in done.network.parameters()),
        "graphs_per_s": round(seen / seconds, 1) if seen else None,
        "validation_curve": [round(row["validation_mape"], 5) for row in done.log],
        **ranged,
        **{part: _errors(done, examples, ids) for part, ids in parts.items() if ids},
    }


def fold_of(job: Job, examples: Examples) -> tuple[Split, Fold]:
    """Return the split and fold of a job; of "all" there is no test part."""
    table = examples.table().assign(source="d35")
    if job.split == ALL:
        split = by_architecture(table)
        return split, everything(split, table)
    split = restricted(SPLITS[job.split](table), table)
    return split, split.folds[job.fold]


def trained(job: Job, examples: Examples, runs: Path) -> Training | None:
    """Return the best network that a job has so far, None if it has no epoch."""
    from safetensors.torch import load_file

    path = runs / job.key / "best.safetensors"
    if not path.is_file():
        return None
    network = Pmgns(job.network)
    network.load_state_dict(load_file(path))
    return Training(network.eval(), 0.0, _epochs_done(runs / job.key), ())


def range_test(job: Job, examples: Examples, rows: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return the rates and losses of the range test, which is done once and kept."""
    path = folder / "range_test.json"
    if path.is_file():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    part = examples.part(rows)
    torch.manual_seed(job.training.seed)
    network = Pmgns(job.network)
    from dippm.estimate.features import collate

    network.fit_scales(collate(part[0]), part[1])
    found = find_rate(network, part, job.training)
    folder.mkdir(parents=True, exist_ok=True)
    tried = {
        "rates": [float(f"{rate:.4g}") for rate in found.rates],
        "losses": [float(f"{loss:.4g}") for loss in found.losses],
        "suggestion": found.suggestion,
    }
    path.write_text(json.dumps(tried) + "\n", encoding="utf-8")
    return tried


def started(runs: Path, examples: Examples, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of earlier calls on the same labels, or a new document."""
    document: dict[str, Any] = {
        "command": "python -m training.d35.experiment FOLDER",
        "labels": dict(about),
        "graphs": len(examples),
        "architectures": len(set(examples.architectures)),
        "families": len(set(examples.families)),
        "nodes": sum(graph.x.shape[0] for graph in examples.graphs),
        "graph_version": examples.graph_version,
        "results": {},
    }
    path = runs / "results.json"
    if path.is_file():
        before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {**before, "results": {}} == document:
            return before
    return document


def write_results(runs: Path, document: Mapping[str, Any]) -> None:
    """Write `results.json` and `results.md`."""
    runs.mkdir(parents=True, exist_ok=True)
    unfinished = runs / "results.part"
    unfinished.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(runs / "results.json")
    (runs / "results.md").write_text(markdown(document), encoding="utf-8")


def _errors(done: Training, examples: Examples, rows: Any) -> dict[str, Any]:
    graphs, targets = examples.part(rows)
    predicted = predictions(done.network, graphs)
    return errors_by_target(predicted, targets, done.network.config.targets)


def _epochs_done(folder: Path) -> int:
    path = folder / "log.csv"
    return max(0, len(path.read_text().splitlines()) - 1) if path.is_file() else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    typer.run(main)
