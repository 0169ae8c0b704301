"""What was fitted to the rows of a task → the law of a checkpoint: configuration and arrays.

A fold's law is made as the shipped one is, of the rows that trained in it, so that a held-out row
can be asked of what a user would have loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dataset.join.latency_splits import TRAINING_ONLY
from dippm.devices.hosts import default_host
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import N_KINDS
from dippm.estimate.models.gpu_effects import named_effects
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.intervals import IntervalLaw
from dippm.estimate.models.kernel_law import KernelLaw
from dippm.estimate.models.memory import MemoryModel
from dippm.estimate.models.monotonic_bounds import FORMATS
from dippm.estimate.models.power import PowerModel
from dippm.model.graph.model_graph import GRAPH_VERSION
from training.forked import map_forked
from training.hybrid.fit.batches import Batches, Indices
from training.hybrid.fit.effects import (
    LEVELS,
    Effects,
    fit_effects,
    row_kernels,
    sampled_rows,
)
from training.hybrid.fit.folds import Runner, Task
from training.hybrid.fit.mixture import TREES
from training.hybrid.fit.network import KernelNetwork
from training.hybrid.fit.novelty import measured_tensors
from training.hybrid.fit.residuals import published
from training.hybrid.fit.tree_arrays import tree_arrays
from training.hybrid.fit.trees import KernelTrees
from training.hybrid.rows.examples import Examples, GraphLookup, Row

RANGE_QUANTILES = (0.001, 0.999)
RANGE_MARGIN = 0.2
OFTEN_MODELS, OFTEN_OPERATORS = 30, 300
"""From so many rows of either on, a GPU is not held between its neighbours, nor slowed by what its
power limit is thought to do: its effects have both, pooled with what other GPUs say."""
CHUNK = 256


@dataclass(frozen=True, slots=True)
class CheckpointLaw:
    """Parts of a configuration, and the arrays that belong to them.

    Attributes:
        law, seen, host: parts of the configuration of these names.
        tensors: arrays by name.
    """

    law: Mapping[str, Any]
    seen: Mapping[str, Any]
    host: Mapping[str, float]
    tensors: Mapping[str, Tensor]


def checkpoint_laws(
    runner: Runner, ensembles: Sequence[Sequence[Task]], weight: float, graph: GraphLookup
) -> list[CheckpointLaw]:
    """Return the law of each ensemble of finished tasks.

    Args:
        runner: runner of the tasks.
        ensembles: their tasks, one for each member, that trained on the same rows; the first of
            each has the trees.
        weight: weight of the networks, against the trees, far from measured models.
        graph: key → graph.
    """
    rows = runner.examples.rows
    sampled = [sampled_rows([rows[i] for i in members[0].taught]) for members in ensembles]
    every = list({row.row_id: row for mine in sampled for row in mine}.values())
    place = {row.row_id: i for i, row in enumerate(every)}
    without = _without_effects(runner, ensembles, weight)
    bare = [
        KernelLaw.from_checkpoint(law.tensors, {"law": law.law, "seen": law.seen})
        for law in without
    ]
    kernels = row_kernels(bare, every, graph)

    def effects_of(position: int) -> dict[str, Any]:
        law, mine, times = without[position], sampled[position], kernels[position]
        found = fit_effects(
            mine,
            [times[place[row.row_id]] for row in mine],
            copy_bytes_per_ms=law.host["copy_bytes_per_ms"],
            heads=[(head["device"], head["mode"], head["table"]) for head in law.law["heads"]],
        )
        return _effects_part(found)

    processes = 1 if len(ensembles) == 1 else None
    each = range(len(ensembles))
    effects = map_forked(effects_of, each, what="effects of GPUs", processes=processes)
    return [
        replace(law, law={**law.law, **found}) for law, found in zip(without, effects, strict=True)
    ]


def _without_effects(
    runner: Runner, ensembles: Sequence[Sequence[Task]], weight: float
) -> list[CheckpointLaw]:
    """Return the law of each ensemble as its GPUs share it, worked out in a process per core."""
    if len(ensembles) == 1:
        return [_shared_law(runner, ensembles[0], weight)]
    work = partial(_in_process, runner, weight)
    found = []
    for law in map_forked(work, ensembles, what="laws of folds"):
        tensors = {name: torch.from_numpy(array) for name, array in law.tensors.items()}
        found.append(replace(law, tensors=tensors))
    return found


def _in_process(runner: Runner, weight: float, members: Sequence[Task]) -> CheckpointLaw:
    """Return the law of an ensemble with NumPy's arrays, which processes exchange whole."""
    torch.set_num_threads(1)
    law = _shared_law(runner, members, weight)
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in law.tensors.items()}
    return replace(law, tensors=arrays)


def _shared_law(runner: Runner, members: Sequence[Task], weight: float) -> CheckpointLaw:
    """Return the law of one ensemble as its GPUs share it."""
    examples, train = runner.examples, members[0].train
    networks = [runner.network(task) for task in members]
    trees = KernelTrees.load(runner.weights(members[0], TREES), runner.settings.trees)
    tables = _tables_with_heads(runner, networks[0], train)
    residual_lines, residual_tensors = published(
        examples,
        runner.points(members[0]),
        [runner.residuals(task) for task in members],
        list(tables.values()),
    )
    measured = runner.measured_models(members[0])
    law: dict[str, Any] = {
        "members": len(networks),
        "network_weight": weight,
        "tree_depth": runner.settings.trees.depth,
        "tree_reach": runner.settings.trees.reach,
        "range": slowdown_ranges(runner, networks[0], members[0].taught),
        "heads": [
            {"device": device, "mode": mode, "table": table}
            for (device, mode), table in tables.items()
        ],
        "residuals": residual_lines,
        "measured_gpus": list(measured.on_gpus),
        "effects": [],
        "default_effects": [],
        "effect_spread": dict.fromkeys(LEVELS, 0.0),
        "laboratories": {},
        "kernel_timer": 0.0,
    }
    positions = [runner.tables[table] for table in tables.values()]
    tensors = _tensors(networks, trees, positions) | measured_tensors(measured) | residual_tensors
    seen = _seen(examples, members[0].taught)
    return CheckpointLaw(law, seen, _host(networks), tensors)


def configuration(
    law: CheckpointLaw, memory: MemoryModel, power: PowerModel, intervals: IntervalLaw
) -> dict[str, Any]:
    """Return what a predictor reads of `config.json`."""
    return {
        "kind": "hybrid",
        "graph_version": GRAPH_VERSION,
        "feature_version": Hybrid.feature_version,
        "law": law.law,
        "host": law.host,
        "memory": asdict(memory),
        "power": asdict(power),
        "intervals": {"latency_ms": asdict(intervals)},
        "seen": law.seen,
    }


def _effects_part(found: Effects) -> dict[str, Any]:
    """Return what the part "law" of a configuration has of effects."""
    return {
        "effects": [
            {"device": device, "mode": mode, "units": named_effects(array)}
            for (device, mode), array in sorted(found.of_gpus.items())
        ],
        "default_effects": [
            {"memory": memory, "mode": mode, "units": named_effects(array)}
            for (memory, mode), array in sorted(found.defaults.items())
        ],
        "effect_spread": {name: round(value, 4) for name, value in found.sd.items()},
        "laboratories": {kind: round(added, 5) for kind, added in found.laboratories.items()},
        "kernel_timer": round(found.kernel_timer, 5),
    }


def _tensors(
    members: Sequence[KernelNetwork], trees: KernelTrees, published: Sequence[int]
) -> dict[str, Tensor]:
    """Return arrays by name; of the heads those of the published tables, in their order."""
    law = {"log_launch_ms", "log_copy", "terms", "offset", "usual"}
    law |= {"known", "with_head", "heads"}
    tensors = {
        f"{m}.{name}": tensor
        for m, member in enumerate(members)
        for name, tensor in member.state_dict().items()
        if name not in law
    }
    for m, member in enumerate(members):
        heads = member.heads.detach() * member.with_head[:, None]
        tensors[f"{m}.heads"] = heads[list(published)].clone()
    arrays = {"classes": trees.classes.astype(np.float32), **tree_arrays(trees.booster)}
    return tensors | {f"trees.{name}": torch.from_numpy(a) for name, a in arrays.items()}


@torch.no_grad()
def slowdown_ranges(
    runner: Runner, network: KernelNetwork, train: Indices
) -> dict[str, tuple[float, float]]:
    """Return between which log slow-downs nearly all measured time of each class lies.

    A class that no row taught has the range of all classes: it is extrapolated, and warned about.
    """
    examples = runner.examples
    batches = Batches(examples, runner.tables)
    found: list[list[np.ndarray]] = [[] for _ in KERNEL_CLASSES]
    for chunk in np.array_split(train, len(train) // CHUNK + 1):
        batch = batches.take(chunk)
        slow = network.log_slowdown(batch).numpy()
        kind = batch.features[:, :N_KINDS].argmax(dim=1).numpy()
        for k in np.unique(kind):
            found[k].append(slow[kind == k])
    every = np.concatenate([np.concatenate(part) for part in found if part])
    ranges = {}
    for name, part in zip(KERNEL_CLASSES, found, strict=True):
        low, high = np.quantile(np.concatenate(part) if part else every, RANGE_QUANTILES)
        ranges[name] = (float(low) - RANGE_MARGIN, float(high) + RANGE_MARGIN)
    return ranges


def _tables_with_heads(
    runner: Runner, network: KernelNetwork, train: Indices
) -> dict[tuple[str, str], str]:
    """Return for each GPU and mode the newest table of many whole models, in order.

    Its weights in the last layer, and what the networks leave over of its rows, are those of the
    GPU: other people's tables of a few models speak for those alone.
    """
    newest: dict[tuple[str, str], str] = {}
    for row in (runner.examples.rows[i] for i in train):
        if row.is_end_to_end and network.with_head[runner.tables[row.table]]:
            key = (row.device.name, row.mode)
            newest[key] = max(newest.get(key, ""), row.table)
    return dict(sorted(newest.items()))


@torch.no_grad()
def _host(members: Sequence[KernelNetwork]) -> dict[str, float]:
    """Return launch time and copy rate of the machine that is taken if a user names none.

    The launch time is that of its class in `dippm/devices/hosts.toml`, which answers name.
    """
    copied: list[torch.Tensor] = [m.log_copy for m in members]
    rate = float(torch.stack(copied).mean().exp())
    return {"launch_ms": default_host().launch_us / 1e3, "copy_bytes_per_ms": rate}


def _seen(examples: Examples, train: Indices) -> dict[str, Any]:
    rows = [examples.rows[i] for i in train]
    devices: dict[str, set[str]] = {}
    for row in rows:
        devices.setdefault(row.device.name, set()).add(row.precision)
    models = [row for row in rows if row.is_model]
    kinds: list[bool] = np.any(examples.class_roofline_ms()[train], axis=0).tolist()
    return {
        "often": _often_measured(rows),
        "devices": {name: sorted(found) for name, found in sorted(devices.items())},
        "batch_range": [min(r.batch for r in models), max(r.batch for r in models)],
        "kernel_classes": [k for k, seen in zip(KERNEL_CLASSES, kinds, strict=True) if seen],
    }


def _often_measured(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the GPUs that were measured often, as users run, by width of the format."""
    rows = [row for row in rows if row.source not in TRAINING_ONLY]
    return {width: _often(rows, width) for width in sorted(set(FORMATS.values()))}


def _often(every: Sequence[Row], width: str) -> list[str]:
    rows = [row for row in every if FORMATS[row.precision] == width]
    models = Counter(r.device.name for r in rows if r.is_model)
    operators = Counter(r.device.name for r in rows if r.kind == "operator")
    return sorted(
        name
        for name in {*models, *operators}
        if models[name] >= OFTEN_MODELS or operators[name] >= OFTEN_OPERATORS
    )
