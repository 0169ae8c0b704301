"""Which measured tables the hybrid predictor learns from, as `Examples`, cached on disk.

Whole models teach the sum, operators and chains of a few teach the classes apart. Where a source is
one grammar measured ten thousand times, a sample speaks for it. Tables of older software than the
newest two generations are left out, so that one GPU is not counted six times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from dataset.join.graph_store import GraphStore
from dataset.join.grouping import architecture_id, family_of
from dataset.join.raw_graphs import path_of
from dataset.measured import gpt, language_models, operators
from dataset.measured.sources import read_if_there
from dippm.devices import find
from dippm.estimate.conditions import PRECISIONS, Timer
from dippm.estimate.features.kernels.run import KeptHalf
from dippm.model.graph.model_graph import GRAPH_VERSION, ModelGraph
from training.forked import map_forked
from training.hybrid.rows.example_cache import cached, digest_of
from training.hybrid.rows.examples import Examples, GraphLookup, Row

TIMERS: dict[str, Timer] = {"K": "kernel", "E": "wall", "W": "wall", "C": "wall+copy"}
"""A table of others has one clock, so what its events leave out is in its own terms."""
RECENT_TORCH = ("torch 2.4", "torch 2.9")
REPARAMETERISED = ("mobileone", "repvgg", "repvit", "repghost", "fastvit")
WIDE_SCORES_TORCH = [2, 5]
NEWER_TORCH = "torch 2.9"
"""Newer benchmark runs merge the parallel branches of REPARAMETERISED families before they time
them, so the graph of the model as built is not the graph that was measured."""
HALF_NORM_GPUS = ("RTX-3090", "RTX-4090")
"""GPUs on which timm's eager benchmark ran timm's own norms in half precision (`set_fast_norm`).

EfficientNet-B0 takes 1.2 times as long with group norms as with batch norms there, and 2.4 times on
an RTX 5090, where autocast widens them; layer norms differ, too.
"""
HALF_LAYER_NORMS = (
    *("beit", "coat", "convformer", "convit", "convnext", "davit", "eva02", "eva_giant"),
    *("focalnet", "gc", "hiera", "max", "mvitv2", "pvt_v2", "rdnet", "sam2_hiera"),
)
"""Prefixes of models most of whose layer norms are timm's own, as in timm 1.0.9."""
NEWER_HALF_LAYER_NORMS = (
    *HALF_LAYER_NORMS,
    *("aimv2", "deit", "eva", "flexivit", "mambaout", "mobilenetv5", "naflexvit", "nest", "test_"),
    *("vit_", "vitamin"),
)
"""The same in timm 1.0.22, which is of the time of NEWER_TORCH."""
PLAIN_LAYER_NORMS = ("vit_relpos", "vit_srelpos")
"""Prefixes of models among them that have PyTorch's layer norms."""
OPERATOR_SOURCES = ("neusight_ops", "aiconfigurator", "vidur", "flagperf", "deepbench")
SAMPLES = {"neusight_ops": 24_000, "aiconfigurator": 16_000, "vidur": 4_000}
KERNELBENCH_CONFIGS = ("eager", "compile_inductor_default")
MIGPERF_MODELS = {
    "resnet50": "torchvision:resnet50@224",
    "vision_transformer": "torchvision:vit_b_16@224",
}
OVERFULL_BATCH, OVERFULL_SLICES = 128, ("3g.40gb", "4g.40gb")
"""Where the DenseNet-169 of ParvaGPU meets the end of the memory."""
STEADY = 0.1
"""Standard deviation over mean of a measured time from which the texts were not of one length."""
PARAMETER_TOLERANCE = 0.1
"""A zoo renames: where the parameter counts differ by more, today's model is another one."""
KEPT_EACH = 100
"""Models whose keys are kept at a time."""
Table: TypeAlias = pd.DataFrame


def load_examples(data: Path, graphs: Path, work: Path) -> Examples:
    """Return the training examples of other people's tables; built once for these rows."""
    rows, graph = load_rows(data, graphs)
    digest = digest_of(rows, graphs)
    return cached(work / f"examples-{digest}", lambda: (rows, graph))


def load_rows(data: Path, graphs: Path) -> tuple[list[Row], GraphLookup]:
    """Return the measured rows of other people's tables, and what finds their graphs."""
    lookup = _Graphs(data, GraphStore(graphs))
    rows = [
        *_model_rows(data, lookup),
        *_operator_rows(data, lookup),
        *_kernelbench_rows(data, lookup),
        *_language_rows(data, lookup),
    ]
    return rows, lookup


class _Graphs:
    """Graphs by key: files for models, made on the spot for operators."""

    def __init__(self, data: Path, store: GraphStore) -> None:
        self.store = store
        self.made: dict[str, Callable[[], ModelGraph]] = {}
        self.data = data

    def __call__(self, key: str) -> ModelGraph:
        return self.made[key]() if key in self.made else self.store[key]

    def keys_of(self, models: Iterable[str]) -> Table:
        """Return architecture and family of the models whose graph is at hand.

        What was worked out is kept beside the folder of graphs, by name and file.
        """
        known = [model for model in sorted(set(models)) if model in self.store]
        folder = self.store.folder
        path = folder.with_name(f"{folder.name}-keys-{GRAPH_VERSION}.json")
        kept: dict[str, list[Any]] = json.loads(path.read_text()) if path.exists() else {}
        stamps = {model: path_of(model, folder).stat() for model in known}
        stated = {m: [stamp.st_size, stamp.st_mtime_ns] for m, stamp in stamps.items()}
        todo = [model for model in known if kept.get(model, [None])[0] != stated[model]]
        of_one = partial(_architecture_of, store=folder)
        found = map_forked(of_one, todo, what="architectures of models")
        for done, (model, *parts) in enumerate(found, 1):
            kept[model] = [stated[model], *parts]
            if done % KEPT_EACH == 0:
                _write(path, kept)
        if todo:
            _write(path, kept)
        records = [(model, kept[model][1], _family(model), kept[model][2]) for model in known]
        columns = ["model", "architecture", "family", "params_M"]
        return pd.DataFrame(records, columns=columns).set_index("model")


def _architecture_of(model: str, store: Path) -> tuple[str, str, float]:
    graph = GraphStore(store)[model]
    return model, architecture_id(graph), graph.param_bytes / 4e6


def _family(model: str) -> str:
    return "bert" if model.startswith("hf:bert") else family_of(model)


def _write(path: Path, document: Any) -> None:
    """Write a document atomically."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(document))
    unfinished.replace(path)


def _model_rows(data: Path, lookup: _Graphs) -> list[Row]:
    tables = [
        selected(table)
        for name, selected in MODEL_SOURCES.items()
        if (table := read_if_there(name, data)) is not None
    ]
    gpts = _gpt_rows(data, lookup)
    if not tables:
        return gpts
    table = pd.concat(tables, ignore_index=True)
    table = table[table["phase"] == "inference"]
    table = table[table["n_gpus"].fillna(1) == 1]
    table = table[table["precision"].isin(PRECISIONS) & (table["latency_ms"] > 0)]
    keys = lookup.keys_of(table["model"])
    table = table[table["model"].isin(keys.index)]
    table = table[_same_model(table, keys)]
    rows = [
        row_of(r, r["model"], *keys.loc[r["model"], ["architecture", "family"]])
        for r in table.to_dict("records")
    ]
    return rows + gpts


def _same_model(table: Table, keys: Table) -> pd.Series:
    """Tell the rows whose name still means the model that was measured, by parameter count.

    Where parameters are not recorded there is nothing to check.
    """
    stated = table.get("params_M", np.nan)
    ratio = table["model"].map(keys["params_M"]) / stated
    return ratio.isna() | ratio.between(1 - PARAMETER_TOLERANCE, 1 + PARAMETER_TOLERANCE)


def _recent(table: Table) -> Table:
    recent = table["software"].str.startswith(RECENT_TORCH)
    family = table["model"].map(family_of)
    merged = family.isin(REPARAMETERISED) & table["software"].str.startswith(NEWER_TORCH)
    return table[recent & ~merged]


def alone(table: Table) -> Table:
    """Return the rows of ParvaGPU that ran without a neighbour on the slice, less two wrong ones.

    What fills a slice of 40 GB takes 1.2 times as long as half of it does, where every other pair
    of batches from 32 on takes 1.7 to 2.1: part of its samples never ran.
    """
    overfull = table["model"].str.contains("densenet169") & (table["batch"] == OVERFULL_BATCH)
    overfull &= table["mig_profile"].isin(OVERFULL_SLICES)
    return table[(table["processes_mps"] == 1) & ~overfull]


def _as_it_is(table: Table) -> Table:
    return table


def named_migperf(table: Table) -> Table:
    """Return the rows of MIGPerf with the names of the models that its classes are."""
    named = table["model"].str.removeprefix("migperf:")
    text = "hf:bert-base@" + table["seq_len"].astype("Int64").astype(str)
    return table.assign(model=named.map(MIGPERF_MODELS).fillna(text))


def steady(table: Table) -> Table:
    """Return the rows of MIGPerf whose texts were of one length, as far as their times say."""
    return table[table["latency_std_ms"] <= STEADY * table["latency_ms"]]


MODEL_SOURCES: Mapping[str, Callable[[Table], Table]] = {
    "timm_infer": _recent,
    "pytorch_gpu_benchmark": _as_it_is,
    "migperf": lambda table: steady(named_migperf(table)),
    "parvagpu": alone,
    "sd_webui": _as_it_is,
}
"""Sources of whole models that are no language models, with what is taken of each."""


def _gpt_rows(data: Path, lookup: _Graphs) -> list[Row]:
    """Return the rows of GPTs whose graph is at hand."""
    table = read_if_there("hwgpt", data)
    if table is None:
        return []
    records = gpt.sample_architectures(table).to_dict("records")
    return [
        row_of(r, key, f"gpt {r['embed_dim']} {r['n_layer']}", "gpt")
        for r in records
        if (key := gpt.key_of(r)) in lookup.store
    ]


def _operator_rows(data: Path, lookup: _Graphs) -> list[Row]:
    rows = []
    for source in OPERATOR_SOURCES:
        table = read_if_there(source, data)
        if table is None:
            continue
        table = table[table["precision"].isin(PRECISIONS) & (table["latency_ms"] > 0)]
        if source in SAMPLES:
            table = _sampled(table, SAMPLES[source])
        table = table.assign(layer=operators.layer_keys(table))
        for record in table.to_dict("records"):
            if source == "neusight_ops":
                record["precision"] = "fp32-ieee"
            if operators.graph_of(record) is None:
                continue
            key = f"operator:{record['row_id']}"
            lookup.made[key] = partial(_graph_of_operator, record)
            rows.append(row_of(record, key, record["layer"], f"operator {record['operator']}"))
    return rows


def _kernelbench_rows(data: Path, lookup: _Graphs) -> list[Row]:
    """Return small modules, one architecture for each problem whatever its sizes.

    Of the compiled modes only the default one, since the tables of compiled models have no other.
    """
    table = read_if_there("kernelbench", data)
    if table is None:
        return []
    table = table[table["config"].isin(KERNELBENCH_CONFIGS) & (table["latency_ms"] > 0)]
    rows = []
    for model, timings in table.groupby("model"):
        if lookup.store.refused(model):
            continue
        graph = lookup.store[model]
        if graph.unknown_ops:
            continue
        costliest = max(graph.nodes, key=lambda n: (n.macs, n.bytes_read + n.bytes_written)).op
        for record in timings.assign(batch=graph.batch).to_dict("records"):
            problem = f"kernelbench {record['level']}/{record['problem_id']}"
            kind = "operator" if record["level"] == 1 else "chain"
            rows.append(row_of(record, model, problem, f"{kind} {costliest}"))
    return rows


def _language_rows(data: Path, lookup: _Graphs) -> list[Row]:
    """Return forward passes of language models; one architecture whether attention is fused."""
    table = read_if_there("optimum_benchmark", data)
    if table is None:
        return []
    table = language_models.forward_passes(table)
    keys = {m: (architecture_id(lookup.store[m]), family_of(m)) for m in table["model"].unique()}
    return [row_of(r, r["graph"], *keys[r["model"]]) for r in table.to_dict("records")]


def _graph_of_operator(record: Mapping[str, Any]) -> ModelGraph:
    graph = operators.graph_of(record)
    assert graph is not None
    return graph


def _sampled(table: Table, count: int) -> Table:
    """Return rows with every GPU and operator equally present."""
    groups = table.groupby(["gpu", "operator"], dropna=False, sort=True)
    each = -(-count // groups.ngroups)
    parts = [g.sample(min(each, len(g)), random_state=0) for _, g in groups]
    return pd.concat(parts)


def row_of(record: Mapping[str, Any], graph: str, architecture: str, family: str) -> Row:
    """Return a row of a measured table; `graph` is the key of its graph."""
    device = find(record["gpu"])
    slice_name = record.get("mig_profile")
    profile = None
    if isinstance(slice_name, str):
        profile = next(p for p in device.mig_profiles if p.name == slice_name)
    software = record["software"] if isinstance(record["software"], str) else ""
    system = record.get("system")
    table = [record["source"], record["gpu"], software, record["mode"]]
    if isinstance(system, str):
        table.append(system)
    batch = record.get("batch")
    return Row(
        row_id=record["row_id"],
        source=record["source"],
        table=" ".join(filter(None, table)),
        device=device,
        timer=TIMERS[record["timer"]],
        precision=record["precision"],
        mode=record["mode"],
        channels_last=record["layout"] == "nhwc",
        batch=1 if batch is None or pd.isna(batch) else int(batch),
        graph=graph,
        architecture=architecture,
        family=family,
        latency_ms=float(record["latency_ms"]),
        mig=profile,
        scale=record["scale"] if isinstance(record.get("scale"), str) else "",
        kept_half=(*kept_half(software), *_half_norms(record, device.name, software)),
    )


def kept_half(software: str) -> tuple[KeptHalf, ...]:
    """Return what a version of PyTorch keeps in half precision: scores, before torch 2.5."""
    name, _, version = software.partition(",")[0].partition(" ")
    parts = version.split(".")
    is_old = name == "torch" and [int(n) for n in parts[:2]] < WIDE_SCORES_TORCH
    return ("scores",) if is_old else ()


def _half_norms(record: Mapping[str, Any], gpu: str, software: str) -> tuple[KeptHalf, ...]:
    """Return the norms that timm's benchmark ran in half precision; generated code has none."""
    is_eager_timm = record["source"] == "timm_infer" and record["mode"] == "eager"
    if not is_eager_timm or gpu not in HALF_NORM_GPUS:
        return ()
    name = record["model"].removeprefix("timm:")
    is_newer = software.startswith(NEWER_TORCH)
    prefixes = NEWER_HALF_LAYER_NORMS if is_newer else HALF_LAYER_NORMS
    has_own = name.startswith(prefixes) or "_rope_" in name
    if not has_own or name.startswith(PLAIN_LAYER_NORMS):
        return ("group_norms",)
    return ("group_norms", "layer_norms")
