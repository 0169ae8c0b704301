"""Write the checkpoint `pmgns-a100`: the surrogate of the default predictor for an A100-40GB.

    python -m training.d35.publish FOLDER --runs build/d35 --out checkpoints/pmgns-a100/<version>

The network is that of the job "shipped/all/0/sage", as good as it is so far. Its errors on held-out
graphs are against labels that were predicted; beside them stand its errors against measured passes
and those of its teacher on the same passes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
import yaml

from dataset.d35.graphs import RAW
from dataset.d35.labels import CONDITIONS, PROVENANCE, labels_folder
from dataset.d35.measured import FILE as MEASURED
from dataset.join import raw_graphs
from dippm.cli.output import errors_reported
from dippm.devices import find as find_device
from dippm.errors import DippmError
from dippm.estimate.conditions import Conditions
from dippm.estimate.features import FEATURE_VERSION
from dippm.estimate.pretrained import CheckpointInfo, find, load, save_checkpoint
from dippm.model.graph import build
from training.d35.examples import about_labels, graph_tensors, load_examples
from training.d35.experiment import ALL, CONFIG, Job, fold_of, jobs_of, trained
from training.d35.report import SPLITS
from training.d35.table4 import table4
from training.evaluation.intervals import residuals
from training.evaluation.metrics import bootstrap, card_columns, grouped_errors
from training.pmgns.examples import Examples
from training.pmgns.trainer import predictions
from training.provenance import check_is_new, describe_making

DEVICE = str(CONDITIONS["device"])
SHIPPED = "shipped"
MEASURED_TARGETS = ("latency_ms", "memory_mb")


def main(
    folder: Annotated[Path, typer.Argument(help="That `dataset.d35.graphs` wrote.")],
    out: Annotated[
        Path,
        typer.Option(help="Checkpoint folder to write, <name>/<version>.", callback=check_is_new),
    ],
    runs: Annotated[Path, typer.Option(help="State of the runs.")] = Path("build/d35"),
    labels: Annotated[
        Path | None, typer.Option(help="Folder of labels; those of the default checkpoint.")
    ] = None,
    config: Annotated[Path, typer.Option(help="Jobs, YAML.")] = CONFIG,
    most: Annotated[int | None, typer.Option(help="Graphs of each family, for a trial.")] = None,
    changes: Annotated[str, typer.Option(help="What is new, for the card.")] = "First version.",
) -> None:
    """Write the checkpoint of what is trained so far."""
    with errors_reported(as_json=False):
        labels = labels or labels_folder(folder, find())
        examples = load_examples(folder, labels, most=most)
        jobs = list(jobs_of(yaml.safe_load(config.read_text(encoding="utf-8"))))
        publish(folder, out, runs, examples, jobs, labels, most=most, changes=changes)


def publish(
    folder: Path,
    out: Path,
    runs: Path,
    examples: Examples,
    jobs: Sequence[Job],
    labels: Path,
    *,
    most: int | None = None,
    changes: str = "First version.",
) -> None:
    """Write the checkpoint; see `main`.

    Raises:
        DippmError: if the network that ships has no epoch yet, or none like it was finished on
            graphs that it had not seen.
    """
    about = about_labels(labels)
    making = describe_making("training.d35.publish", out, {"runs": runs, "most": most})
    shipped = next(j for j in jobs if j.name == SHIPPED and j.split == ALL)
    done = trained(shipped, examples, runs)
    if done is None:
        raise DippmError(
            f"nothing of {shipped.key} in {runs}",
            "Train it with `python -m training.d35.experiment`.",
        )
    path = runs / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))["results"] if path.is_file() else {}
    held = pd.concat(
        [
            held_out(job, examples, runs)
            for job in jobs
            if job.network == shipped.network and job.split != ALL and job.key in results
        ]
        or [pd.DataFrame()]
    )
    if held.empty:
        raise DippmError(
            f"no network in {runs} was finished on graphs that it had not seen",
            "Train the other jobs with `python -m training.d35.experiment`.",
        )
    targets = shipped.network.targets
    strictest = held[held["split"] == max(held["split"])]
    summary = [line for split in sorted(set(held["split"])) for line in lines(held, split, targets)]
    teacher = find(about["checkpoint"].replace(" ", "@"))
    measured = measured_errors(folder, done.network, teacher)
    document = {
        "kind": "pmgns",
        "graph_version": examples.graph_version,
        "feature_version": FEATURE_VERSION,
        "seed": shipped.training.seed,
        "network": shipped.network.to_dict(),
        "conditions": {
            "devices": [DEVICE],
            "precision": [CONDITIONS["precision"]],
            "mode": [CONDITIONS["mode"]],
            "timer": ["wall"],
            "channels_last": [False],
            "autograd": [CONDITIONS["autograd"]],
        },
        "residuals": {t: residuals(log_ratios(strictest, t)) for t in targets},
        "absent": {"power_w": "this network has no output for it"},
        "seen": {
            "operators": list(examples.operators),
            "batch": _range(int(graph.static[0, 1]) for graph in examples.graphs),
            "nodes": _range(graph.x.shape[0] for graph in examples.graphs),
        },
        "trained_on": {**about, **making, "graphs": len(examples), "epochs": done.best_epoch},
        "card": {
            **card(examples, about, strictest),
            "command": f"python -m training.d35.experiment FOLDER\n{making['command']}",
            "changes": changes,
        },
    }
    metrics = {
        "summary": summary,
        "splits": {name: SPLITS[name] for name in sorted(set(held["split"]))},
        "beside measured passes, percent": measured
        or "No measured pass: see dataset.d35.measured.",
        "D3.5's Table 4, memory in MB": table4(folder, done.network, teacher),
        "by family, held out, percent": by_family(strictest, targets),
        "training": [{"run": key, **_flat(result)} for key, result in results.items()],
    }
    weights = {name: tensor.cpu() for name, tensor in done.network.state_dict().items()}
    save_checkpoint(out, weights, document, metrics)


def held_out(job: Job, examples: Examples, runs: Path) -> pd.DataFrame:
    """Return labels and predictions of a job's test part, with keys, split and fold."""
    done = trained(job, examples, runs)
    assert done is not None
    _, fold = fold_of(job, examples)
    graphs, labels = examples.part(fold.test)
    predicted = predictions(done.network, graphs).double().numpy()
    keys = examples.table().set_index("row_id").loc[list(fold.test)]
    columns: dict[str, Any] = {}
    for column, target in enumerate(job.network.targets):
        columns[target] = labels[:, column].double().numpy()
        columns[f"predicted {target}"] = predicted[:, column]
    return keys.assign(split=job.split, run=job.name, fold=fold.name, **columns)


def lines(held: pd.DataFrame, split: str, targets: Sequence[str]) -> list[dict[str, Any]]:
    """Return a line of the accuracy table for each target on a split, of its longest run."""
    rows = held[held["split"] == split]
    rows = rows[rows["run"] == (SHIPPED if SHIPPED in set(rows["run"]) else rows["run"].iloc[-1])]
    found = []
    for target in targets:
        known = rows[rows[target].notna()]
        actual, predicted = known[target].to_numpy(), known[f"predicted {target}"].to_numpy()
        grouped = grouped_errors(actual, predicted, list(known["family_id"]))
        interval = bootstrap(actual, predicted, list(known["arch_id"]))
        found.append(
            {
                "gpu": DEVICE,
                "data": f"D3.5's families, labels {PROVENANCE}",
                "target": target,
                "split": split,
                "n": len(known),
                "architectures": int(known["arch_id"].nunique()),
                "families": int(known["family_id"].nunique()),
                **card_columns(grouped, interval),
                "headline": False,
            }
        )
    return found


def measured_errors(
    folder: Path, network: torch.nn.Module, teacher: CheckpointInfo
) -> list[dict[str, Any]]:
    """Return errors of the surrogate and of its teacher on the measured passes, by table and GPU.

    The surrogate answers as for its own conditions whatever a row's were; the teacher too, on an
    A100-40GB, and once more under the row's own conditions.
    """
    path = folder / MEASURED
    if not path.is_file():
        return []
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = table.drop_columns(["x", "edge_from", "edge_to", "operators"]).to_pandas()
    columns = list(network.config.targets)  # type: ignore[union-attr, arg-type]
    answers = predictions(network, graph_tensors(table))  # type: ignore[arg-type]
    for column, target in enumerate(columns):
        rows[f"surrogate {target}"] = answers[:, column].double().numpy()
    predictor = load(teacher.path).predictor
    for model, group in rows.groupby("model", sort=False):
        graph = build(raw_graphs.read(str(model), folder / RAW))
        for name, asked in (("teacher", _alike), ("teacher, as measured", _as_measured)):
            estimates = predictor.predict_many(graph, [asked(r) for r in group.to_dict("records")])
            for target in MEASURED_TARGETS:
                values = [e.values[target].value if target in e.values else None for e in estimates]
                rows.loc[group.index, f"{name} {target}"] = pd.Series(values, index=group.index)
    found = []
    for (source, gpu), group in rows.groupby(["source", "gpu"]):
        for target in MEASURED_TARGETS:
            known = group[group[target].notna()]
            if len(known):
                line = {"table": source, "gpu": gpu, "target": target, "n": len(known)}
                for name in ("surrogate", "teacher", "teacher, as measured"):
                    ape = (known[f"{name} {target}"] / known[target] - 1).abs() * 100
                    line |= {f"{name} MAPE": round(float(ape.mean()), 1)}
                    line |= {f"{name} median": round(float(ape.median()), 1)}
                found.append(line)
    return found


def _alike(row: Mapping[str, Any]) -> Conditions:
    return Conditions(device=find_device(DEVICE), batch=int(row["batch"]), autograd=True)


def _as_measured(row: Mapping[str, Any]) -> Conditions:
    timer: Any = {"C": "wall+copy", "E": "event", "K": "kernel"}.get(row["timer"], "wall")
    device = find_device(row["gpu"])
    return Conditions(
        device=device, batch=int(row["batch"]), precision=row["precision"], timer=timer
    )


def by_family(held: pd.DataFrame, targets: Sequence[str]) -> list[dict[str, Any]]:
    """Return the MAPE of each family and target in percent."""
    found = []
    for family, rows in held.groupby("family_id"):
        line: dict[str, Any] = {"family": family, "graphs": len(rows)}
        for target in targets:
            ape = 100 * (rows[f"predicted {target}"] / rows[target] - 1).abs()
            line[f"MAPE {target}"] = round(float(ape.mean()), 1)
        found.append(line)
    return found


def log_ratios(held: pd.DataFrame, target: str) -> np.ndarray[Any, Any]:
    """Return log(label / predicted) of the rows that have a label."""
    rows = held[held[target].notna()]
    ratios: np.ndarray[Any, Any] = np.log(rows[target] / rows[f"predicted {target}"]).to_numpy()
    return ratios


def card(examples: Examples, about: Mapping[str, Any], strictest: pd.DataFrame) -> dict[str, Any]:
    """Return the texts of the model card."""
    teacher, split = about["checkpoint"], strictest["split"].iloc[0]
    return {
        "summary": f"It imitates {teacher}: a small graph network that gives memory, latency and "
        f"energy as that predictor would, for an {DEVICE} alone. Its labels are {PROVENANCE}.",
        "use": "Screening many designs (`dippm explore --surrogate pmgns-a100`), and gradients "
        "with respect to a graph's features. What is chosen is asked of the default predictor.",
        "limits": [
            f"Every error on graphs is one against {teacher}; that predictor's own errors come on "
            "top. Errors against measured passes stand in a table of their own.",
            f"{DEVICE}, eager float32, whole GPU, and the memory of a forward pass without "
            "`torch.no_grad` (autograd), as D3.5 measured; other conditions are refused.",
            "Latency and energy are those of a pass under `torch.no_grad`, launched by the host "
            "that the teacher assumes where nobody names one.",
            f"Intervals are the 90 % range of errors on {split} ({SPLITS[split]}), against the "
            "same labels. They know nothing of the labels' own errors.",
            "The ten families of D3.5: convolutional networks and vision transformers.",
        ],
        "devices": DEVICE,
        "never_measured": "Nothing here was measured. Labels of the original are lost.",
        "data": f"{len(examples):,} graphs, {len(set(examples.architectures)):,} architectures, "
        f"{len(set(examples.families))} families in the proportions of D3.5's Table 1 "
        "(`dataset.d35`).",
    }


def _range(values: Any) -> list[int]:
    found = list(values)
    return [min(found), max(found)]


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("fold", "hidden", "epochs", "best_epoch", "learning_rate", "batch_size", "parameters")
    flat = {name: result[name] for name in kept}
    parts = {p: result[p]["mape"] for p in ("training", "validation", "test") if p in result}
    return {**flat, **{f"MAPE {part}": 100 * value for part, value in parts.items()}}


if __name__ == "__main__":
    typer.run(main)
