"""Train one `pmgns` network: seeds, early stop, resume, a CSV log.

Each epoch draws its order and its dropout from (seed, epoch), so a run that was interrupted and
resumed is the run that was not.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dippm.estimate.features import GraphTensors, collate
from dippm.estimate.models.pmgns_network import Pmgns
from training.pmgns.lr_finder import LearningRateRange, find_learning_rate

D35_LEARNING_RATE = 2.754e-5
STATE = "state"
Part = tuple[Sequence[GraphTensors], torch.Tensor]


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How a network is trained.

    Attributes:
        epochs: at most.
        batch_size: graphs per step; D3.5's code has 1.
        learning_rate: a number, or "finder" for the range test on the training part.
        schedule: "constant" as in D3.5, or "cosine" down to a hundredth of the rate.
        patience: epochs without a better validation error before the run stops; 0 never stops.
        gradient_clip: largest gradient norm; 0 leaves gradients alone.
        seed: seed of weights, order and dropout.
        bfloat16: graph layers under bfloat16 autocast (several times faster on recent CPUs).
    """

    epochs: int = 10
    batch_size: int = 1
    learning_rate: float | Literal["finder"] = D35_LEARNING_RATE
    schedule: Literal["constant", "cosine"] = "constant"
    patience: int = 0
    gradient_clip: float = 0.0
    seed: int = 42
    bfloat16: bool = True


@dataclass(frozen=True, slots=True)
class Training:
    """The outcome: the network holds the best weights by validation error."""

    network: Pmgns
    learning_rate: float
    best_epoch: int
    log: tuple[Mapping[str, float], ...]


def predictions(network: Pmgns, graphs: Sequence[GraphTensors], *, step: int = 32) -> torch.Tensor:
    """Return (G, T) in physical units."""
    network.eval()
    with torch.inference_mode():
        parts = [
            network.decode(network(collate(graphs[i : i + step])))
            for i in range(0, len(graphs), step)
        ]
    return torch.cat(parts)


def absolute_errors(network: Pmgns, part: Part) -> torch.Tensor:
    """Return |predicted / measured - 1| of the labels that exist, (labels,)."""
    graphs, targets = part
    errors = (predictions(network, graphs) / targets - 1).abs()
    return errors[targets.isfinite()]


def mape(network: Pmgns, part: Part) -> float:
    """Return the mean absolute percentage error as a fraction, over the labels that exist."""
    return absolute_errors(network, part).mean().item()


def train(
    network: Pmgns,
    training: Part,
    validation: Part,
    config: TrainingConfig,
    *,
    folder: Path,
    experiment: str | None = None,
) -> Training:
    """Train, or go on where `folder` says that a run with the same configuration stopped.

    Args:
        network: fresh; its scales are fitted here, on the training part.
        training: graphs and targets (G, T), NaN where unlabelled.
        validation: decides which weights are kept and when to stop.
        config: how.
        folder: of `log.csv`, `last.safetensors` (with the state of the run as its metadata), and
            `best.safetensors`.
        experiment: also log to this MLflow experiment, if MLflow is installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    network.fit_scales(collate(training[0]), training[1])
    identity = _identity(network, config, (training, validation))
    state = _resumed(folder, network, identity)
    rate = state.get("learning_rate") or _rate(network, training, config)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    if state:
        _load_optimizer(optimizer, load_file(folder / "last.safetensors"))
    log: list[dict[str, float]] = state.get("log", [])
    with _progress() as progress:
        task = progress.add_task(
            network.config.gnn, total=config.epochs, completed=len(log), note=""
        )
        for epoch in range(len(log), config.epochs):
            if _exhausted(log, config.patience):
                break
            loss = _epoch(network, optimizer, training, config, epoch=epoch, rate=rate)
            row = {"epoch": epoch, "loss": loss, "validation_mape": mape(network, validation)}
            log.append(row)
            if row["validation_mape"] <= min(r["validation_mape"] for r in log):
                _save_whole(network.state_dict(), folder / "best.safetensors")
            _save(folder, network, optimizer, {**identity, "learning_rate": rate, "log": log})
            progress.update(task, advance=1, note=f"validation {row['validation_mape']:.3f}")
    _to_mlflow(experiment, network, config, log)
    network.load_state_dict(load_file(folder / "best.safetensors"))
    best = min(log, key=lambda row: row["validation_mape"])
    return Training(network, rate, int(best["epoch"]), tuple(log))


def find_rate(network: Pmgns, training: Part, config: TrainingConfig) -> LearningRateRange:
    """Return the range test over batches of the training part."""

    def batches() -> Iterator[tuple[GraphTensors, torch.Tensor]]:
        epoch = 0
        while True:
            yield from _batches(training, config, epoch)
            epoch += 1

    return find_learning_rate(
        network, batches(), lambda copy, batch: _loss(copy, *batch, bfloat16=config.bfloat16)
    )


def _rate(network: Pmgns, training: Part, config: TrainingConfig) -> float:
    if config.learning_rate == "finder":
        return find_rate(network, training, config).suggestion
    return config.learning_rate


def _epoch(
    network: Pmgns,
    optimizer: torch.optim.Optimizer,
    training: Part,
    config: TrainingConfig,
    *,
    epoch: int,
    rate: float,
) -> float:
    """Train one epoch; return the mean loss."""
    network.train()
    torch.manual_seed(1_000_003 * config.seed + epoch)
    total, steps = 0.0, math.ceil(len(training[0]) / config.batch_size)
    for step, (graphs, targets) in enumerate(_batches(training, config, epoch)):
        if config.schedule == "cosine":
            done = (epoch * steps + step) / (config.epochs * steps)
            for group in optimizer.param_groups:
                group["lr"] = rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        optimizer.zero_grad()
        loss = _loss(network, graphs, targets, bfloat16=config.bfloat16)
        loss.backward()
        if config.gradient_clip:
            torch.nn.utils.clip_grad_norm_(network.parameters(), config.gradient_clip)
        optimizer.step()
        total += loss.item() / steps
    return total


def _loss(
    network: Any, graphs: GraphTensors, targets: torch.Tensor, *, bfloat16: bool
) -> torch.Tensor:
    with torch.autocast(targets.device.type, torch.bfloat16, enabled=bfloat16):
        out = network(graphs)
    loss: torch.Tensor = network.loss(out.float(), targets)
    return loss


def _batches(
    part: Part, config: TrainingConfig, epoch: int
) -> Iterator[tuple[GraphTensors, torch.Tensor]]:
    graphs, targets = part
    generator = torch.Generator().manual_seed(1_000_003 * config.seed + epoch)
    for chosen in torch.randperm(len(graphs), generator=generator).split(config.batch_size):
        yield collate([graphs[i] for i in chosen.tolist()]), targets[chosen]


def _exhausted(log: Sequence[Mapping[str, float]], patience: int) -> bool:
    if not patience or not log:
        return False
    errors = [row["validation_mape"] for row in log]
    return len(errors) - 1 - errors.index(min(errors)) >= patience


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    return Progress(*columns, TimeRemainingColumn())


def _save(
    folder: Path, network: Pmgns, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in slots.items()}
    # The state travels with the weights: a run that is killed between two files mixes nothing.
    _save_whole(tensors, folder / "last.safetensors", {STATE: json.dumps(state)})
    with (folder / "log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, state["log"][0])
        writer.writeheader()
        writer.writerows(state["log"])


def _save_whole(
    tensors: Mapping[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write under another name and rename, so that a file is whole or the one before."""
    unfinished = path.with_suffix(".part")
    save_file(dict(tensors), unfinished, metadata)
    unfinished.replace(path)


def _identity(network: Pmgns, config: TrainingConfig, parts: Sequence[Part]) -> dict[str, Any]:
    """Return what must be equal for a run to go on: also the data, or splits would mix."""
    digest = hashlib.sha256()
    for graphs, targets in parts:
        digest.update(targets.cpu().numpy().tobytes())
        digest.update(torch.cat([graph.static for graph in graphs]).cpu().numpy().tobytes())
    return {
        "network": network.config.to_dict(),
        "training": asdict(config),
        "data": digest.hexdigest(),
    }


def _resumed(folder: Path, network: Pmgns, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an interrupted run and load its weights; {} without one."""
    path = folder / "last.safetensors"
    if not path.is_file():
        return {}
    with safe_open(path, "pt") as file:
        state: dict[str, Any] = json.loads((file.metadata() or {}).get(STATE, "{}"))
    if any(state.get(name) != value for name, value in json.loads(json.dumps(identity)).items()):
        return {}
    prefix = "network."
    tensors = load_file(path)
    network.load_state_dict(
        {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    )
    return state


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    state = optimizer.state_dict()
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".")
            state["state"].setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict(state)


def _to_mlflow(
    experiment: str | None,
    network: Pmgns,
    config: TrainingConfig,
    log: Sequence[Mapping[str, float]],
) -> None:
    if experiment is None:
        return
    import mlflow

    mlflow.set_experiment(experiment)
    with mlflow.start_run(run_name=network.config.gnn):
        mlflow.log_params({**network.config.to_dict(), **asdict(config)})
        for row in log:
            metrics = {name: value for name, value in row.items() if name != "epoch"}
            mlflow.log_metrics(metrics, step=int(row["epoch"]))
